// Chooses the kernel of a product.
#include "engine/ops/matmul/product_cuda.h"

#include "engine/base/error.h"
#include "engine/ops/small_step/small_step.h"

namespace trainctl::cuda {
namespace {

/// Vectors are read along rows if they are contiguous: a contiguous column is a row of the transposed matrix.
Product normal_form(Product p) {
  if (p.a_sums != nullptr || p.b_sums != nullptr) return p;
  if (p.transpose_a && p.m == 1 && p.a_row == 0) p.transpose_a = false;
  if (!p.transpose_b && p.n == 1) p.transpose_b = true;
  return p;
}

/// Multiplications from which the library's kernels win: theirs use the multipliers better, ours start sooner.
constexpr double kLarge = 5e8;

}  // namespace

std::optional<CudaKernel> prepare_product(const Product& product, CudaScratch& scratch) {
  check(product.descend == nullptr || (product.accumulate && product.batch == 1),
        "an SGD step fused into a product accumulates");
  check(product.residual == nullptr || !product.accumulate, "a product adds itself to C or to a residual, not to both");
  if (product.is_fp8()) return prepare_cublas(product, scratch);
  const Product p = normal_form(product);
  const double work = static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k * p.batch);
  if (work < kLarge && p.a_row == 0 && p.residual == nullptr && small_step_products()) {
    if (std::optional<CudaKernel> thin = prepare_thin(p)) return thin;
    if (std::optional<CudaKernel> tile = prepare_tile(p)) return tile;
  }
  return prepare_cublas(p, scratch);
}

}  // namespace trainctl::cuda
