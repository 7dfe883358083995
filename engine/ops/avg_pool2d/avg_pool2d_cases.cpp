// Cases of avg_pool2d: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <numeric>

#include "tests/op_cases/image_cases.h"
#include "tests/op_cases/op_cases.h"
#include "tests/op_cases/pool_cases.h"

namespace trainctl {
namespace {

using namespace naive;

Outputs avg_pool(const Inputs& in, const Attrs& attrs) {
  return pooled(in[0], attrs, [&](const std::vector<double>& pixels, int64_t with_padding) {
    const double count =
        attrs.flag("count_include_pad") ? static_cast<double>(with_padding) : static_cast<double>(pixels.size());
    return std::accumulate(pixels.begin(), pixels.end(), 0.0) / count;
  });
}

std::vector<OpCase> avg_pool2d_rows() {
  std::vector<OpCase> avg_pool2d_rows = pool_rows("avg_pool2d", {});
  for (OpCase& row : pool_rows("avg_pool2d", {{"count_include_pad", true}})) avg_pool2d_rows.push_back(std::move(row));
  return avg_pool2d_rows;
}

}  // namespace

extern const OpCases avg_pool2d_cases = {
    .rows = avg_pool2d_rows(),
    .references = {{"avg_pool2d", avg_pool}},
    .rules = {{{"avg_pool2d", {{{2, 3, 7, 6}}}, {{"kernel", Ints{3, 2}}, {"stride", Ints{2, 2}}}},
               "nchw->ncpq",
               "hwpq",
               {{2, 3, 3, 3}}}},
    .gradients = {{{"avg_pool2d", {{{2, 3, 7, 6}}}, {{"kernel", Ints{3, 2}}}},
                   {"avg_pool2d_grad ncpq->nchw sums pq"},
                   "each channel of an image is independent of the others",
                   "hwpq"}},
    .shape_errors = {{{"avg_pool2d", {{{2, 3, 4, 4}, DType::i32}}, {{"kernel", Ints{2, 2}}}},
                      "avg_pool2d expects f32, but got [2, 3, 4, 4] i32"}},
    .layers = {{"avg_pool2d", ", kernel: 2", {8, 3, 2, 1}, false, {3, 4, 3}},
               {"avg_pool2d",
                ", kernel: 3, stride: 2, padding: 1, ceil_mode: true, count_include_pad: false",
                {8, 3, 3, 2},
                false,
                {3, 4, 3}}},
};

}  // namespace trainctl
