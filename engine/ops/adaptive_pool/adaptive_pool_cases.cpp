// Cases of adaptive pools: layers built from a pool, or from slice, reduce_sum or reduce_max, and concat.
#include "tests/op_cases/op_cases.h"

namespace trainctl {

extern const OpCases adaptive_pool_cases = {
    .layers = {{"adaptive_avg_pool2d", ", size: [2, 1]", {8, 3, 2, 1}, false, {3, 4, 3}},
               {"adaptive_avg_pool2d", ", size: [3, 2]", {8, 3, 3, 2}, false, {3, 5, 4}},
               {"adaptive_max_pool2d", ", size: 2", {8, 3, 2, 2}, false, {3, 4, 6}},
               {"adaptive_max_pool2d", ", size: 2", {8, 3, 2, 2}, false, {3, 5, 3}}},
};

}  // namespace trainctl
