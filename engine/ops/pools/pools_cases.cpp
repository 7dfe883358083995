// Cases of pools of rows and volumes, which are built from reshape and pools of images.
#include "tests/op_cases/op_cases.h"

namespace trainctl {

extern const OpCases pools_cases = {
    .layers = {{"max_pool1d", ", kernel: 3, stride: 2, padding: 1, dilation: 2", {8, 3, 3}, false, {3, 7}},
               {"max_pool1d", ", kernel: 2", {8, 3, 3}, false, {3, 7}},
               {"avg_pool1d", ", kernel: 2, ceil_mode: true", {8, 3, 4}, false, {3, 7}},
               {"max_pool3d", ", kernel: 2", {8, 2, 2, 2, 1}, false, {2, 4, 5, 3}},
               {"max_pool3d",
                ", kernel: [2, 3, 1], stride: [1, 2, 1], padding: [1, 1, 0], dilation: [2, 1, 1], ceil_mode: true",
                {8, 2, 4, 3, 3},
                false,
                {2, 4, 5, 3}},
               {"avg_pool3d",
                ", kernel: [2, 3, 3], stride: 2, padding: 1, count_include_pad: false",
                {8, 2, 3, 3, 2},
                false,
                {2, 4, 5, 3}}},
};

}  // namespace trainctl
