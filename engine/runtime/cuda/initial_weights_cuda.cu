// Initial weights computed on the device: the formulas of runtime/initial_weights.h. One thread computes one element:
// from its index in this rank's part follows its index in the whole tensor, and from that its value.
#include <cuda_fp16.h>

#include <type_traits>

#include "engine/base/text.h"
#include "engine/ops/cuda/launch_cuda.h"
#include "engine/ops/random.h"
#include "engine/runtime/cuda/initial_weights_cuda.h"
#include "engine/runtime/initial_weights.h"

namespace trainctl::cuda {
namespace {

constexpr int kWeightThreads = 256;
constexpr int64_t kMostWeightBlocks = 4096;
constexpr int kMostDims = 8;
constexpr double kTwoPi = 6.283185307179586;

/// A part of a tensor, row-major.
struct Part {
  int ndim = 0;
  int64_t shape[kMostDims], offset[kMostDims], whole[kMostDims];

  __device__ int64_t in_whole(int64_t in_part) const {
    int64_t index = 0, stride = 1;
    for (int d = ndim - 1; d >= 0; --d) {
      index += (offset[d] + in_part % shape[d]) * stride;
      in_part /= shape[d];
      stride *= whole[d];
    }
    return index;
  }
};

__device__ float unit(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

__device__ float value_at(Init::Kind kind, float scale, uint64_t key, uint64_t i) {
  if (kind == Init::Kind::constant || kind == Init::Kind::row_norms) return scale;
  const Philox4 words = philox(key, i >> 2, 0);
  const int index = static_cast<int>(i & 3);
  if (kind == Init::Kind::uniform) return scale * (2.0f * unit(words.v[index]) - 1.0f);
  const double u1 = 1.0 - unit(words.v[index & 2]), u2 = unit(words.v[(index & 2) + 1]);
  const double radius = sqrt(-2.0 * log(u1)), angle = kTwoPi * u2;
  return scale * static_cast<float>(radius * ((index & 1) != 0 ? sin(angle) : cos(angle)));
}

template <class T>
__global__ void fill(Init::Kind kind, float scale, uint64_t key, Part part, int64_t first, int64_t count, T* out) {
  const int64_t step = gridDim.x * int64_t{kWeightThreads};
  for (int64_t i = blockIdx.x * int64_t{kWeightThreads} + threadIdx.x; i < count; i += step) {
    const float value = value_at(kind, scale, key, static_cast<uint64_t>(part.in_whole(first + i)));
    if constexpr (std::is_same_v<T, __half>)
      out[i] = __float2half_rn(value);
    else
      out[i] = from_f32<T>(value);
  }
}

Part part_of(const Variable& variable) {
  Part part;
  part.ndim = static_cast<int>(variable.shape.size());
  check(part.ndim <= kMostDims, "a variable may have at most 8 dims");
  for (int d = 0; d < part.ndim; ++d) {
    part.shape[d] = variable.shape[d];
    part.offset[d] = variable.offset[d];
    part.whole[d] = variable.global_shape[d];
  }
  return part;
}

}  // namespace

void enqueue_initial_weights(const Program& program, uint64_t seed, const RankMemory& memory, CudaStream stream) {
  for (const StoredRange& range : stored_ranges(program)) {
    if (!has_initial_values(range) || range.count == 0) continue;
    const Variable& variable = *range.variable;
    const Part part = part_of(variable);
    const uint64_t key = stream_key(seed, stable_hash(variable.name));
    const auto blocks = static_cast<unsigned>(std::min(ceil_div(range.count, kWeightThreads), kMostWeightBlocks));
    const auto write = [&](auto zero) {
      using T = decltype(zero);
      fill<<<blocks, kWeightThreads, 0, stream>>>(variable.init.kind, static_cast<float>(variable.init.value), key,
                                                  part, range.first, range.count,
                                                  reinterpret_cast<T*>(memory.at(range.offset)));
    };
    if (range.dtype == DType::f16)
      write(__half{});
    else
      with_float_type(range.dtype, write);
    cuda_check_launch("initial weights");
  }
}

}  // namespace trainctl::cuda
