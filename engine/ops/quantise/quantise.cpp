// Factors of products in 8 bits (quantised.h): x [.., n], of which all dims but the last are rows, becomes lines of its
// rows, with attr rows, and lines of its columns, with attr columns. A product that sums over n takes the first, one
// that sums over the rows the second. Epilogue steps come before the rounding: an activation of x, or an activation's
// slope at the last input times x; bias_grad adds an output, the sums of that over the rows.
#include "engine/ops/quantise/quantise.h"

#include "engine/ops/examples.h"
#include "engine/ops/op_family.h"
#include "engine/ops/quantise/quantised.h"

namespace trainctl {
namespace {

/// Sums over the rows of each tile.
int64_t most_scratch(const std::vector<Shape>& in, const std::vector<Shape>&) {
  const int64_t n = in[0].back(), rows = num_elements(in[0]) / n;
  return padded_line(rows) / kScaledTogether * n * byte_size(DType::f32);
}

}  // namespace

std::vector<TensorInfo> quantised(Infos in, const Attrs& attrs, DType) {
  const int64_t n = in[0].shape.back(), rows = num_elements(in[0].shape) / n;
  std::vector<TensorInfo> out;
  const auto add = [&](int64_t lines, int64_t length) {
    QuantisedShapes shapes = quantised_shapes(lines, length, attrs.flag("squares"));
    out.push_back({std::move(shapes.words), DType::i32});
    out.push_back({std::move(shapes.scales), DType::f32});
  };
  if (attrs.flag("rows")) add(rows, n);
  if (attrs.flag("columns")) add(n, rows);
  if (epilogue_of(attrs).bias_grad) out.push_back({{n}, DType::f32});
  return out;
}

extern const KernelDef quantise_kernel = {
    .name = "quantise",
    .accumulates = 1u << 2 | 1u << 4,  // the sums over rows
    .takes = bits(EpilogueStep::activation, EpilogueStep::slope, EpilogueStep::bias_grad),
    .most_cuda_scratch = most_scratch,
    .example =
        [] {
          return KernelExample{.what = "E4M3 numbers and scales of x [rows, n], by rows, by columns or both",
                               .inputs = {{example::kMatrix}},
                               .attrs = {{"rows", true}, {"columns", true}},
                               .optional = {{"squares", true}},
                               .outputs = quantised};
        },
};

extern const OpFamily quantise_family = {.ops = {}, .kernels = {&quantise_kernel}, .profile_part = "quantise"};

}  // namespace trainctl
