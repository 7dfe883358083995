// Cases of the layers conv3d and conv_transpose3d, which are built from convolutions of images and moves.
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
                {2, 4, 5, 3}},
               {"conv3d",
                ", channels: 2, kernel: [3, 2, 2], padding: same, padding_mode: circular",
                {8, 2, 4, 5, 3},
                false,
                {2, 4, 5, 3}},
               {"conv_transpose3d", ", channels: 3, kernel: 2, stride: 2", {8, 3, 8, 10, 6}, false, {2, 4, 5, 3}},
               {"conv_transpose3d",
                ", channels: 3, kernel: 3, stride: 2, padding: 1, output_padding: 1, bias: false",
                {8, 3, 8, 10, 6},
                false,
                {2, 4, 5, 3}},
               {"conv_transpose3d", ", channels: 2, kernel: 3, padding: 1", {8, 2, 4, 5, 3}, false, {2, 4, 5, 3}},
               {"conv_transpose3d",
                ", channels: 4, kernel: [2, 3, 2], stride: [3, 1, 2], dilation: [2, 1, 3], groups: 2",
                {8, 4, 12, 7, 8},
                false,
                {4, 4, 5, 3}},
               {"conv_transpose3d",
                ", channels: 4, kernel: [3, 1, 2], stride: [2, 2, 1], output_padding: [1, 1, 0], groups: 4",
                {8, 4, 4, 6, 4},
                false,
                {4, 1, 3, 3}}},
};

}  // namespace trainctl
