// C[m, n] = sum_k A[m, k] B[n, k] of numbers of 8 bits times their scales, summed in f32.
#include "engine/ops/matmul/fp8_factors.h"

#include "engine/ops/cuda/cuda_scratch.h"
#include "engine/ops/examples.h"
#include "engine/ops/named_ops.h"
#include "engine/ops/quantise/quantised.h"

namespace trainctl {
namespace {

constexpr int64_t kExampleSide = 1024;

Cost cost(Infos in, Infos out, const Attrs&) {
  Cost cost;
  for (const TensorInfo& info : in) cost.bytes += static_cast<double>(bytes_of(info));
  for (const TensorInfo& info : out) cost.bytes += static_cast<double>(bytes_of(info));
  cost.flops = 2.0 * 4 * static_cast<double>(num_elements(out[0].shape)) * static_cast<double>(in[0].shape.back());
  return cost;
}

std::vector<TensorInfo> example_outputs(Infos in, const Attrs&, DType dtype) {
  example::expect(in[0].shape.size() == 2 && in[2].shape.size() == 2, "the words of A and B have 2 dims");
  example::expect(in[0].shape[1] == in[2].shape[1], "the lines of A and B have the same length");
  return {{{in[0].shape[0], in[2].shape[0]}, dtype}};
}

}  // namespace

extern const OpDef matmul_weight_grad_op;

extern const KernelDef matmul_fp8_kernel = {
    .name = "matmul_fp8",
    .accumulates = 1,
    .takes = bits(EpilogueStep::bias, EpilogueStep::residual),
    .is_product = true,
    .cost = cost,
    .most_cuda_scratch = [](const std::vector<Shape>&, const std::vector<Shape>&) -> int64_t {
      return kProductWorkspace + 256;
    },
    .example =
        [] {
          using namespace example;
          const QuantisedShapes lines = quantised_shapes(kExampleSide, kExampleSide, false);
          return KernelExample{.what = "C[m,n] = sum_k A[m,k] B[n,k] (+ bias[n]) of E4M3 numbers and their scales",
                               .inputs = {{lines.words, Fill::indices},
                                          f32(lines.scales),
                                          {lines.words, Fill::indices},
                                          f32(lines.scales)},
                               .optional = {{"a_squares", true}, {"b_squares", true}},
                               .outputs = example_outputs,
                               .below = [](Infos, const Attrs&) -> int64_t { return 0x38383838; }};
        },
};

std::optional<Fp8Factors> fp8_factors(const KernelDef& kernel, const Attrs& attrs) {
  if (&kernel == &matmul_op.kernel) return Fp8Factors{{0, attrs.flag("transpose_a")}, {1, !attrs.flag("transpose_b")}};
  if (&kernel != &matmul_weight_grad_op.kernel) return std::nullopt;
  const bool kn = attrs.flag("kn");
  return Fp8Factors{{kn ? 0u : 1u, true}, {kn ? 1u : 0u, true}};
}

}  // namespace trainctl
