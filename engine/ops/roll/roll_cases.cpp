// A layer built from slice and concat.
#include "tests/op_cases/op_cases.h"

namespace trainctl {

extern const OpCases roll_cases = {
    .layers = {{"roll", ", shift: 5, dim: 1", {8, 12}}, {"roll", ", shift: -1, dim: -1", {8, 4, 3}, false, {4, 3}}},
};

}  // namespace trainctl
