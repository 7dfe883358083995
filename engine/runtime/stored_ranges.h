// The one list of what a rank keeps from step to step: weights, optimizer states, running statistics. Initial weights,
// checkpoints, resuming and export go through it. Everything random comes from counters (seed, step, element), so
// nothing else has to be kept.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/compile/program.h"
#include "engine/graph/box.h"

namespace trainctl {

/// Slots besides the optimizer's states, which have the names of OptimizerDef::states.
inline constexpr std::string_view kWeightSlot = "weight";
inline constexpr std::string_view kStateSlot = "state";  ///< running statistics

/// Elements [first, first + count) of this rank's part of a variable, contiguous in the arena.
struct StoredRange {
  const Variable* variable = nullptr;
  std::string_view slot;
  int64_t first = 0, count = 0;  ///< row-major in the part
  int64_t offset = 0;            ///< bytes from the arena's start
  DType dtype = DType::f32;
  /// A bf16 copy that kernels read while some rank has the f32 weights. It is never stored, but rounded from the
  /// weights.
  bool is_copy = false;
  /// True if this rank has the newest values between two steps, whichever rank stores them.
  bool is_fresh = false;
  /// parallel.local_steps: the replica whose value this is; 0: the first, or all have the same.
  int replica = 0;
  /// Elements that checkpoints take from this rank; together the ranks' cover each element of the tensor once.
  int64_t own_first = 0, own_count = 0;

  int64_t bytes() const { return count * byte_size(dtype); }
  int64_t own_bytes() const { return own_count * byte_size(dtype); }
  int64_t own_offset() const { return offset + (own_first - first) * byte_size(dtype); }
  /// The slot in checkpoints: "exp_avg", or "exp_avg@1" of the second replica.
  std::string stored_slot() const;
};

/// The slot without the replica: "exp_avg" of "exp_avg@1".
std::string_view slot_of_first_replica(std::string_view stored_slot);
std::string slot_of_replica(std::string_view slot, int replica);

/// In the order of the program's variables; for each its weights, then its optimizer states. `program` must outlive
/// the ranges.
std::vector<StoredRange> stored_ranges(const Program& program);

inline constexpr std::string_view kGradientSlot = "gradient";
/// Gradients that the updates of a step have read: kept only until the next step, never stored. None for a bucket that
/// keeps no gradients. A range of own elements has the sum over all ranks.
std::vector<StoredRange> gradient_ranges(const Program& program);

/// Elements [first, first + count) of a row-major tensor as boxes, in order: at most 2 * ndim - 1.
std::vector<Box> boxes_of(const Shape& shape, int64_t first, int64_t count);

/// Elements [first, first + count) of this rank's part as boxes of the whole tensor.
std::vector<Box> boxes_of(const Variable& variable, int64_t first, int64_t count);

}  // namespace trainctl
