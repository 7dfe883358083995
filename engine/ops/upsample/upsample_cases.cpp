// Cases of the layer upsample, which is built from reshape and concat.
#include "tests/op_cases/op_cases.h"

namespace trainctl {

extern const OpCases upsample_cases = {
    .layers = {{"upsample", ", factor: 2", {8, 3, 8, 6}, false, {3, 4, 3}},
               {"upsample", ", factor: [3, 1]", {8, 3, 12, 3}, false, {3, 4, 3}},
               {"upsample", ", factor: [1, 2]", {8, 3, 4, 6}, false, {3, 4, 3}}},
};

}  // namespace trainctl
