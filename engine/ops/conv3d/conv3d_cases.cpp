// Cases of the layer conv3d, which is built from slice, reshape, conv2d and concat.
#include "tests/op_cases/op_cases.h"

namespace trainctl {

extern const OpCases conv3d_cases = {
    .layers = {{"conv3d", ", channels: 3, kernel: 3, padding: 1", {8, 3, 4, 5, 3}, false, {2, 4, 5, 3}},
               {"conv3d",
                ", channels: 2, kernel: [2, 3, 1], stride: [2, 1, 2], bias: false",
                {8, 2, 2, 3, 2},
                false,
                {2, 4, 5, 3}},
               {"conv3d", ", channels: 2, kernel: [4, 1, 1]", {8, 2, 1, 5, 3}, false, {2, 4, 5, 3}}},
};

}  // namespace trainctl
