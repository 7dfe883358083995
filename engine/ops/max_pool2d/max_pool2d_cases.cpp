#include <algorithm>
#include <cmath>

#include "tests/op_cases/image_cases.h"
#include "tests/op_cases/op_cases.h"
#include "tests/op_cases/pool_cases.h"

namespace trainctl {
namespace {

using namespace naive;

Outputs max_pool(const Inputs& in, const Attrs& attrs) {
  return pooled(in[0], attrs, [](const std::vector<double>& pixels, int64_t) {
    return *std::max_element(pixels.begin(), pixels.end());
  });
}

}  // namespace

extern const OpCases max_pool2d_cases = {
    .rows = pool_rows("max_pool2d", {}),
    .references = {{"max_pool2d", max_pool}},
    .rules =
        {{{"max_pool2d", {{{2, 3, 7, 6}}}, {{"kernel", Ints{3, 2}}, {"stride", Ints{2, 2}}}},
          "nchw->ncpq",
          "hwpq",
          {{2, 3, 3, 3}}},
         {{"max_pool2d", {{{2, 7, 6, 3}}}, {{"kernel", Ints{3, 2}}, {"stride", Ints{2, 2}}, {"channels_last", true}}},
          "nhwc->npqc",
          "hwpq",
          {{2, 3, 3, 3}}}},
    .gradients = {{{"max_pool2d", {{{2, 3, 7, 6}}}, {{"kernel", Ints{3, 2}}}},
                   {"max_pool2d_grad ncpq,nchw->nchw sums pq"},
                   "each image and channel is by itself",
                   "hwpq"}},
    .shape_errors = {{{"max_pool2d", {{{2, 3}}}, {{"kernel", Ints{2, 2}}}},
                      "max_pool2d needs images [n, c, h, w], but got [2, 3]"},
                     {{"max_pool2d", {{{2, 3, 4, 4}}}, {{"kernel", Ints{5, 2}}}},
                      "max_pool2d: a kernel of 5x2 does not fit into images of 4x4"}},
    .layers = {{"max_pool2d", ", kernel: 2", {8, 3, 2, 1}, false, {3, 4, 3}},
               {"max_pool2d", ", kernel: 2, ceil_mode: true", {8, 3, 2, 2}, false, {3, 4, 3}},
               {"max_pool2d", ", kernel: [3, 2], stride: 1, padding: 1", {8, 3, 4, 4}, false, {3, 4, 3}}},
};

}  // namespace trainctl
