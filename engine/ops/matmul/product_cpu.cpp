// Chooses the tiles of a product, splits it over threads, and provides scratch memory.
#include "engine/ops/matmul/product_cpu.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/base/error.h"
#include "engine/ops/cpu/scratch_cpu.h"
#include "engine/ops/cpu/threads_cpu.h"

namespace trainctl::cpu {
namespace {

const Tiles* tiles_of_this_processor() {
  static const Tiles* const tiles = tiles_avx512() != nullptr ? tiles_avx512() : tiles_avx2();
  return tiles;
}

/// Fills in row strides, and turns vectors the way that suits the tiles: a contiguous column is a row of the transposed
/// matrix.
Product normal_form(Product p) {
  if (p.a_row == 0) p.a_row = p.transpose_a ? p.m : p.k;
  if (p.b_row == 0) p.b_row = p.transpose_b ? p.k : p.n;
  if (p.c_row == 0) p.c_row = p.n;
  p.whole_c = p.m * p.n;
  if (p.transpose_a && p.m == 1 && p.a_row == 1) {
    p.transpose_a = false;
    p.a_row = p.k;
  }
  if (!p.transpose_b && p.n == 1 && p.b_row == 1) {
    p.transpose_b = true;
    p.b_row = p.k;
  } else if (p.transpose_b && p.k == 1 && p.b_row == 1) {
    p.transpose_b = false;
    p.b_row = p.n;
  }
  return p;
}

/// Rows or columns [first, first + count) of the product.
Product rows_of(Product p, int64_t first, int64_t count) {
  p.m = count;
  p.a += p.transpose_a ? first : first * p.a_row;
  p.c += first * p.c_row;
  return p;
}

Product columns_of(Product p, int64_t first, int64_t count) {
  p.n = count;
  p.b += p.transpose_b ? first * p.b_row : first;
  p.c += first;
  if (p.bias != nullptr) p.bias += first;
  return p;
}

/// One part per thread, cut along the longer side at multiples of 16. Small products stay whole: waking a thread takes
/// as long as a few hundred thousand multiplications.
std::vector<Product> shares(const Product& p) {
  constexpr int64_t kWorthAThread = 1 << 20;
  const int64_t longer = std::max(p.m, p.n);
  const int64_t worth = std::max<int64_t>(1, p.m * p.n * p.k / kWorthAThread);
  const int64_t parts = std::min<int64_t>({p.threads, worth, (longer + 15) / 16});
  std::vector<Product> all;
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t first = longer * i / parts / 16 * 16;
    const int64_t end = i + 1 == parts ? longer : longer * (i + 1) / parts / 16 * 16;
    if (end > first) all.push_back(p.n >= p.m ? columns_of(p, first, end - first) : rows_of(p, first, end - first));
  }
  return all;
}

/// oneDNN fixes its factors when it is prepared, but the learning rate changes: so the product goes to a buffer first.
CpuKernel descend_with_onednn(Product product) {
  auto step = std::make_shared<std::vector<float>>(static_cast<size_t>(product.m * product.n));
  float* const c = std::exchange(product.c, step->data());
  const float* const rate = std::exchange(product.descend, nullptr);
  product.accumulate = false;
  return [step, c, rate, run = prepare_product_with_onednn(product)] {
    run();
    for (size_t i = 0; i < step->size(); ++i) c[i] -= *rate * (*step)[i];
  };
}

}  // namespace

const Tiles& tiles_for_blocks() {
  const Tiles* tiles = tiles_of_this_processor();
  return tiles != nullptr ? *tiles : tiles_of_fours();
}

CpuKernel prepare_product(const Product& product) {
  if (product.m == 0 || product.n == 0 || product.batch == 0) return [] {};
  check(product.k > 0, "a matrix product needs k > 0");
  check(product.descend == nullptr || (product.accumulate && product.batch == 1),
        "an SGD step fused into a product accumulates");
  const Tiles* tiles = tiles_of_this_processor();
  if (tiles == nullptr && product.descend != nullptr) return descend_with_onednn(product);
  if (tiles == nullptr) return prepare_product_with_onednn(product);

  const Product p = normal_form(product);
  std::vector<Product> parts = shares(p);
  int64_t floats = 0;  // floats of scratch memory per part
  for (const Product& part : parts) floats = std::max(floats, (tiles->scratch_floats(part) + 15) / 16 * 16);
  const std::shared_ptr<Scratch> scratch = scratch_of_this_thread();
  scratch->reserve(floats * static_cast<int64_t>(parts.size()));
  if (p.batch == 1 && parts.size() == 1) return [=] { tiles->run(p, scratch->data()); };
  return [=] {
    run_parts(static_cast<int>(parts.size()), [&](int part) {
      Product one = parts[static_cast<size_t>(part)];
      for (int64_t i = 0; i < p.batch; ++i) {
        tiles->run(one, scratch->data() + part * floats);
        one.a += p.a_step;
        one.b += p.b_step;
        one.c += p.c_step;
      }
    });
  };
}

}  // namespace trainctl::cpu
