// Cases of the layer prelu, which is built from relu, clip, mul and add.
#include "tests/op_cases/op_cases.h"

namespace trainctl {

extern const OpCases prelu_cases = {
    .layers = {{"prelu", "", {8, 12}},
               {"prelu", ", per_channel: true", {8, 12}},
               {"prelu", ", per_channel: true", {8, 3, 4, 3}, false, {3, 4, 3}}},
};

}  // namespace trainctl
