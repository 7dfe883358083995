// See the header.
#include "engine/ops/cuda/cuda_scratch.h"

#include <algorithm>

#include "engine/ops/op_def.h"

namespace trainctl {
namespace {

/// Sums that blocks share (split_sums_cuda.cuh): up to 2 KiB of each block that a card runs at once, for 2,048 of them.
constexpr int64_t kOfSums = 4 << 20;
/// The library's workspace and two factors (cublas_product_cuda.cpp).
constexpr int64_t kOfProducts = kProductWorkspace + 256;

/// Sorted tokens with their counts, where each row's begin, and sums of rows over windows of 512 tokens.
int64_t of_embedding_grad(int64_t tokens, const Shape& table) {
  const int64_t ints = 5 * tokens + table[0] + 1025, floats = 2 * (tokens / 512 + 1) * table[1];
  return 4 * (ints + floats);
}

}  // namespace

int64_t most_cuda_scratch(std::string_view kernel, const std::vector<Shape>& inputs,
                          const std::vector<Shape>& outputs) {
  if (const OpDef* op = find_op(kernel); op != nullptr && op->is_product) return kOfProducts;
  if (kernel == "embedding_grad") return std::max(kOfSums, of_embedding_grad(num_elements(inputs[1]), outputs[0]));
  return kOfSums;
}

}  // namespace trainctl
