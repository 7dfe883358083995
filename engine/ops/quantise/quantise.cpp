// Rounds an operand of matrix products to 8 bits, with a scale per block of a line (quantised.h). All dims of x [.., n]
// but the last are rows. The lines are the rows of x (attr rows), which products that sum over n read; or its columns
// (attr columns), which products that sum over the rows read; or both. Epilogue steps are applied before the rounding:
// an activation of x, or x times the slope of an activation at the last input. With the step bias_grad, the sums of the
// result over the rows are another output.
//
// Attr tensor: one scale for the whole tensor (tensor_scale.h), from another input: the largest magnitudes of its shards
// [ranks], or with attr delayed the scale [1]. Then there are no activations and slopes. Attr e5m2: in E5M2, not E4M3.
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
    QuantisedShapes shapes = quantised_shapes(lines, length, attrs.flag("squares"), attrs.flag("tensor"));
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
    .accumulates = 1u << 2 | 1u << 4,  // the sums over rows are output 2, or 4 if there are rows and columns
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
