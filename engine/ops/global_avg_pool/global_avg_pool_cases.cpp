// Cases of the layer global_avg_pool, which is built from reduce_sum.
#include "tests/op_cases/op_cases.h"

namespace trainctl {

extern const OpCases global_avg_pool_cases = {
    .layers = {{"global_avg_pool", "", {8, 3}, false, {3, 4, 3}},
               {"global_avg_pool", ", keep_dims: true", {8, 3, 1, 1}, false, {3, 4, 3}}},
};

}  // namespace trainctl
