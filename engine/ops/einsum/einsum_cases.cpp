// Cases of the layer einsum, which is built from transpose, reshape, reduce_sum and matmul.
#include "tests/op_cases/op_cases.h"

namespace trainctl {

extern const OpCases einsum_cases = {
    .layers =
        {{"einsum", ", inputs: [first, square], equation: 'bi,bj->bij'", {8, 12, 12}},
         {"einsum", ", inputs: [first, square], equation: 'bi,bi->b'", {8}},
         {"einsum", ", equation: 'bhij->bjh'", {8, 5, 3}, false, {3, 4, 5}},
         {"einsum", ", inputs: [first, square, shaped], equation: 'bi,bj,bkl->bkij'", {8, 3, 12, 12}, false, {3, 4}}},
};

}  // namespace trainctl
