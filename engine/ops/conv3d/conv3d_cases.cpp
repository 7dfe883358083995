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
               {"conv3d", ", channels: 2, kernel: [4, 1, 1]", {8, 2, 1, 5, 3}, false, {2, 4, 5, 3}},
               {"conv3d", ", channels: 6, kernel: [2, 3, 2], groups: 2", {8, 6, 3, 3, 2}, false, {4, 4, 5, 3}},
               {"conv3d",
                ", channels: 2, kernel: [2, 2, 1], dilation: [2, 3, 1], padding: [1, 0, 0], groups: 2",
                {8, 2, 4, 2, 3},
                false,
                {2, 4, 5, 3}},
               {"conv3d",
                ", channels: 3, kernel: 3, dilation: [2, 1, 1], padding: [2, 0, 0]",
                {8, 3, 4, 3, 1},
                false,
                {2, 4, 5, 3}}},
};

}  // namespace trainctl
