// The dropout mask on the device: the same bits as on the CPU, for any slice of a tensor.
#pragma once

#include <cmath>

#include "engine/ops/batch_index.h"
#include "engine/ops/cuda/strided_cuda.cuh"
#include "engine/ops/random.h"

namespace trainctl {

/// Maps the elements of a slice to indices in the whole micro-batch's tensor, as runs that are contiguous in both.
struct PlaceInWhole {
  Nest<1> outer;      ///< over runs: index of each run's start in the whole
  Divisor run_packs;  ///< packs of a run
  int64_t run = 1;    ///< elements of a run
  int64_t first = 0;  ///< index of the slice's first element

  explicit PlaceInWhole(const TensorArg& slice) {
    const Shape local = cpu::strides_of(slice.shape), whole = cpu::strides_of(slice.global_shape);
    cpu::Loops<2> loops;
    for (size_t d = 0; d < slice.shape.size(); ++d) {
      first += slice.offset[d] * whole[d];
      loops.add(slice.shape[d], {local[d], whole[d]});
    }
    if (loops.ndim > 0 && loops.stride[loops.ndim - 1][1] == 1) {
      std::array<int64_t, 2> step{};
      run = loops.take_inner(step);
    }
    cpu::Loops<1> runs;
    for (int d = 0; d < loops.ndim; ++d) runs.add(loops.size[d], {loops.stride[d][1]});
    outer = Nest<1>(runs);
  }
  void set_pack(int pack) { run_packs = Divisor(std::max<int64_t>(1, run / pack)); }

  /// Index of pack base + local, local < 2^31; `base` is the same for all threads of a block.
  template <int V>
  __device__ int64_t of_pack(int64_t base, uint32_t local) const {
    if (outer.ndim == 0) return first + (base + local) * V;  // one run: a whole tensor, or a part of its batch
    const int64_t base_run = base / run_packs.by;
    const auto from_run = static_cast<uint32_t>(base - base_run * run_packs.by) + local;
    const uint32_t runs = run_packs.quotient(from_run);
    int64_t at[1] = {first + static_cast<int64_t>(from_run - runs * run_packs.by) * V};
    outer.add_offsets(static_cast<uint32_t>(base_run) + runs, at);
    return at[0];
  }
};

/// The mask of a layer. An element is kept if its 24-bit number is at least `threshold`. That is the CPU's u >= p: both
/// sides times 2^24 are exact.
struct DropoutMask {
  BatchIndex batch;
  uint64_t key = 0;
  uint32_t threshold = 0;  ///< for whole words, whose upper 24 bits count; p = 1 would need 2^32
  bool none = false;       ///< p = 1: no element is kept
  float scale = 0;

  DropoutMask() = default;
  /// `y` is the slice, `name` the layer's key.
  DropoutMask(uint64_t seed, double p, int64_t name, const BatchPlace& place, const TensorArg& y, int micro_batch)
      : batch(place, y.global_shape, micro_batch),
        key(stream_key(seed, static_cast<uint64_t>(name))),
        threshold(static_cast<uint32_t>(std::ceil(static_cast<float>(p) * 0x1p24f)) << 8),
        none(static_cast<float>(p) >= 1.0f),
        scale(p < 1.0 ? static_cast<float>(1.0 / (1.0 - p)) : 0.0f) {}

  __device__ float keep(uint32_t word, float v) const { return word >= threshold && !none ? v * scale : 0.0f; }

  /// True if a pack of elements that are consecutive in the micro-batch is so in the whole batch.
  bool keeps_packs() const { return batch.run == 0; }

  /// Applies the mask to elements `index`, index + 1, .. of the whole micro-batch; a Philox block has the numbers of
  /// four elements.
  template <int V>
  __device__ void drop(uint32_t step, int64_t index, float (&v)[V]) const {
    drop(step, static_cast<uint64_t>(batch.of(index)), v, [this](int round) { return philox_round_key(key, round); });
  }

 protected:
  template <int V, class KeyOf>
  __device__ void drop(uint64_t step, uint64_t index, float (&v)[V], KeyOf key_of) const {
    if (V > 1 && (index & 3) == 0) {
#pragma unroll
      for (int j = 0; j < V; j += 4) {
        const Philox4 bits = philox_rounds(key_of, (index + j) >> 2, step);
#pragma unroll
        for (int k = 0; k < 4 && j + k < V; ++k) v[j + k] = keep(bits.v[k], v[j + k]);
      }
      return;
    }
    Philox4 bits{};
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const uint64_t at = index + j;
      if (j == 0 || (at & 3) == 0) bits = philox_rounds(key_of, at >> 2, step);
      const uint32_t k = at & 3;
      v[j] = keep(k < 2 ? (k == 0 ? bits.v[0] : bits.v[1]) : (k == 2 ? bits.v[2] : bits.v[3]), v[j]);
    }
  }
};

/// The mask as a kernel parameter: a round's key is then an operand in constant memory, which costs no instruction.
/// (Keys in registers cost a fifth of all instructions, and instructions bound dropout in bf16.)
struct MaskOfKernel : DropoutMask {
  PhiloxRoundKey keys[kPhiloxRounds];

  explicit MaskOfKernel(const DropoutMask& mask) : DropoutMask(mask) {
    for (int round = 0; round < kPhiloxRounds; ++round) keys[round] = philox_round_key(key, round);
  }
  template <int V>
  __device__ void drop(uint32_t step, int64_t index, float (&v)[V]) const {
    DropoutMask::drop(step, static_cast<uint64_t>(batch.of(index)), v, [this](int round) { return keys[round]; });
  }
};

}  // namespace trainctl
