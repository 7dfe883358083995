// Sums of operands in one GPU's memory.
#pragma once

#include <array>
#include <cstdint>

#include "engine/graph/dtype.h"
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl::cuda {

inline constexpr int kMostSummands = 16;

/// out[i] = in[0][i] + in[1][i] + …, in this order, in f32. f32 or bf16; `out` may be one of the inputs.
struct PeerSum {
  std::array<const void*, kMostSummands> in{};
  int summands = 0;
  void* out = nullptr;
  int64_t count = 0;
  DType dtype = DType::f32;
};
void enqueue_sum(const PeerSum& sum, CudaStream stream);

}  // namespace trainctl::cuda
