// Cases of the layer dense, which is built from other families' ops.
#include "tests/op_cases/op_cases.h"

namespace trainctl {

extern const OpCases dense_cases = {
    .layers = {{"dense", ", units: 5", {8, 5}},
               {"dense", ", units: 5, bias: false, init: {type: normal, std: 0.02}", {8, 5}},
               {"dense", ", units: 12, share: first", {8, 12}}},
};

}  // namespace trainctl
