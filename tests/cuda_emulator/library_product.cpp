// Products that cuBLASLt computes on a GPU. Here they are plain loops, so that the code around them runs; they are
// counted, and reported as left out at the end.
#include <cstdio>
#include <cstring>

#include "engine/base/error.h"
#include "engine/graph/e4m3.h"
#include "engine/graph/e5m2.h"
#include "engine/graph/half.h"
#include "engine/ops/matmul/product_cuda.h"
#include "engine/ops/quantise/quantised.h"
#include "tests/cuda_emulator/library_rules.h"
#include "tools/cuda_emulator/global_memory.h"
#include "tools/cuda_emulator/runtime_state.h"

namespace trainctl::cuda {
namespace {

struct LibraryProductCount {
  int products = 0;
  ~LibraryProductCount() {
    if (products > 0)
      std::fprintf(stderr, "emulator: %d products use cuBLASLt on a GPU and were computed by plain loops: left out\n",
                   products);
  }
};
LibraryProductCount library_product_count;

float library_product_element(const void* data, DType dtype, int64_t i) {
  if (dtype == DType::f32) return static_cast<const float*>(data)[i];
  float value = 0;
  halves_to_floats(dtype, static_cast<const uint16_t*>(data) + i, 1, &value);
  return value;
}

/// Element i of line l of a factor: of 8 bits, times its scale (ops/quantise/quantised.h).
float scaled(const Product& p, bool of_a, int64_t l, int64_t i) {
  const float* const scales = of_a ? p.a_scales : p.b_scales;
  const int64_t lines = of_a ? p.m : p.n, parts = p.k / kScaledTogether, part = i / kScaledTogether;
  const bool squares = of_a ? p.a_squares : p.b_squares, e5m2 = of_a ? p.a_e5m2 : p.b_e5m2;
  const uint8_t bits = static_cast<const uint8_t*>(of_a ? p.a : p.b)[l * p.k + i];
  const float scale = p.tensor_scales ? scales[0]
                      : squares       ? scales[l / kScaledTogether * ((parts + 3) / 4 * 4) + part]
                                      : scales[part * lines + l];
  return (e5m2 ? from_e5m2(bits) : from_e4m3(bits)) * scale;
}

double term(const Product& p, int64_t z, int64_t i, int64_t j, int64_t k) {
  if (p.is_fp8()) return double{scaled(p, true, i, k)} * double{scaled(p, false, j, k)};
  const int64_t a_row = p.a_row > 0 ? p.a_row : p.transpose_a ? p.m : p.k;
  return static_cast<double>(
             library_product_element(p.a, p.operands, z * p.a_step + (p.transpose_a ? k * a_row + i : i * a_row + k))) *
         library_product_element(p.b, p.operands, z * p.b_step + (p.transpose_b ? j * p.k + k : k * p.n + j));
}

void run(const Product& p) {
  for (int64_t z = 0; z < p.batch; ++z) {
    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = 0; j < p.n; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < p.k; ++k) sum += term(p, z, i, j, k);
        if (p.bias != nullptr) sum += library_product_element(p.bias, p.bias_type, j);
        const int64_t at = z * p.c_step + i * p.n + j;
        if (p.descend != nullptr) sum *= -*p.descend;
        if (p.accumulate) sum += library_product_element(p.c, p.result, at);
        if (p.residual != nullptr) sum += library_product_element(p.residual, p.result, at);
        const auto value = static_cast<float>(sum);
        if (p.result == DType::f32)
          static_cast<float*>(p.c)[at] = value;
        else
          floats_to_halves(p.result, &value, 1, static_cast<uint16_t*>(p.c) + at);
        emulator::Allocation* written = emulator::global_memory().find(reinterpret_cast<uint64_t>(p.c));
        check(written != nullptr, "a product's result must be in device memory");
        const auto bytes = static_cast<uint64_t>(byte_size(p.result));
        const uint64_t first = reinterpret_cast<uint64_t>(p.c) + static_cast<uint64_t>(at) * bytes - written->first;
        if (written->written != nullptr) std::memset(written->written.get() + first, 1, bytes);
      }
    }
  }
}

}  // namespace

std::optional<CudaKernel> prepare_cublas(const Product& p, CudaScratch&) {
  const bool more = p.activation != Activation::none || p.slope != Activation::none || p.before != nullptr ||
                    p.a_sums != nullptr || p.b_sums != nullptr;
  const bool other_bias = p.is_fp8() && p.bias != nullptr && p.bias_type != DType::bf16;  // as cuBLASLt
  if (more || other_bias) return std::nullopt;
  ++library_product_count.products;
  return [p](CudaStream) {
    emulator::submit([p] {
      emulator::settle();
      run(p);
    });
  };
}

}  // namespace trainctl::cuda

int trainctl::emulator::library_products() { return cuda::library_product_count.products; }
