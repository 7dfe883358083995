// Cases of adaptive pools: layers built from a pool, or from slice, reduce_sum or reduce_max, and concat.
#include "tests/op_cases/op_cases.h"

namespace trainctl {

extern const OpCases adaptive_pool_cases = {
    .layers = {{"adaptive_avg_pool2d", ", size: [2, 1]", {8, 3, 2, 1}, false, {3, 4, 3}},
               {"adaptive_avg_pool2d", ", size: [3, 2]", {8, 3, 3, 2}, false, {3, 5, 4}},
               {"adaptive_max_pool2d", ", size: 2", {8, 3, 2, 2}, false, {3, 4, 6}},
               {"adaptive_max_pool2d", ", size: 2", {8, 3, 2, 2}, false, {3, 5, 3}},
               {"adaptive_avg_pool2d", ", size: [5, 4]", {8, 3, 5, 4}, false, {3, 1, 4}},
               {"adaptive_avg_pool1d", ", size: 3", {8, 3, 3}, false, {3, 7}},
               {"adaptive_max_pool1d", ", size: 1", {8, 3, 1}, false, {3, 7}},
               {"adaptive_max_pool1d", ", size: 60", {8, 2, 60}, false, {2, 120}},
               {"adaptive_avg_pool1d", ", size: 61", {8, 1, 61}, false, {1, 97}},
               {"adaptive_avg_pool1d", ", size: 6", {8, 2, 6}, false, {2, 8}},
               {"adaptive_max_pool2d", ", size: [4, 6]", {8, 2, 4, 6}, false, {2, 6, 8}},
               {"adaptive_avg_pool3d", ", size: [1, 4, 2]", {8, 1, 1, 4, 2}, false, {1, 2, 6, 4}},
               {"adaptive_avg_pool3d", ", size: 1", {8, 2, 1, 1, 1}, false, {2, 4, 5, 3}},
               {"adaptive_max_pool3d", ", size: [2, 4, 3]", {8, 2, 2, 4, 3}, false, {2, 4, 5, 3}}},
};

}  // namespace trainctl
