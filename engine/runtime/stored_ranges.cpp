// The one list of what a rank keeps from step to step: weights, optimizer states, running statistics.
#include "engine/runtime/stored_ranges.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/ops/optimizer_def.h"

namespace trainctl {
namespace {

/// The ranges of one slot of a variable, as they lie in its bucket.
class Slot {
 public:
  Slot(const Variable& variable, const Bucket& bucket, StoredRange range, std::vector<StoredRange>& to)
      : v_(variable), bucket_(bucket), range_(range), to_(to) {
    range_.variable = &variable;
  }

  /// Adds the ranges of the variable in this slot. `offset`: where the bucket begins in the arena or, if this rank
  /// keeps only its shards of the bucket (`cut`), where its shards begin. Negative: the slot does not exist.
  void add(int64_t offset, bool cut) {
    if (offset < 0) return;
    if (bucket_.level == 0) return add_part(offset, 0, bucket_.elements, true);
    for (int p = 0; p < bucket_.pieces; ++p) {
      const Bucket::Piece piece = bucket_.piece(p);
      if (cut) {
        add_part(offset + bytes(piece.kept_first), piece.own_first, piece.own_elements, true);
        continue;
      }
      // Weights outside of this rank's shard are not fresh: they may be gathered only in the next step.
      const int64_t own_end = piece.own_first + piece.own_elements, end = piece.first + piece.elements;
      add_part(offset + bytes(piece.first), piece.first, piece.own_first - piece.first, false);
      add_part(offset + bytes(piece.own_first), piece.own_first, piece.own_elements, true);
      add_part(offset + bytes(own_end), own_end, end - own_end, false);
    }
  }

 private:
  int64_t bytes(int64_t elements) const { return elements * byte_size(range_.dtype); }

  /// Adds the variable's share of elements [first, first + count) of the bucket, which are at `offset`.
  void add_part(int64_t offset, int64_t first, int64_t count, bool is_fresh) {
    const int64_t begin = std::max(v_.bucket_element, first);
    const int64_t end = std::min(v_.bucket_element + num_elements(v_.shape), first + count);
    if (begin >= end) return;
    StoredRange range = range_;
    range.first = begin - v_.bucket_element;
    range.count = end - begin;
    range.offset = offset + bytes(begin - first);
    range.is_fresh = is_fresh && !range.is_copy;
    if (range.is_fresh) set_own(range);
    to_.push_back(range);
  }

  void set_own(StoredRange& range) const {
    const int64_t begin = std::max(range.first, v_.own_first);
    const int64_t end = std::min(range.first + range.count, v_.own_first + v_.own_elements);
    if (begin >= end) return;
    range.own_first = begin;
    range.own_count = end - begin;
  }

  const Variable& v_;
  const Bucket& bucket_;
  StoredRange range_;
  std::vector<StoredRange>& to_;
};

/// True if another rank stores the range: the first replica stores what all replicas share.
bool is_stored_by_another(const Program& program, const StoredRange& range) {
  return program.replica > 0 && range.replica == 0;
}

StoredRange range_of_state(const Variable& v, std::string_view slot) {
  check(v.arena_offset >= 0, "a variable without a bucket needs its own place");
  StoredRange range{.variable = &v, .slot = slot, .count = num_elements(v.shape), .offset = v.arena_offset};
  range.dtype = v.dtype;
  range.is_fresh = true;
  range.own_first = v.own_first;
  range.own_count = v.own_elements;
  return range;
}

}  // namespace

std::string slot_of_replica(std::string_view slot, int replica) {
  return replica == 0 ? std::string(slot) : std::string(slot) + "@" + std::to_string(replica);
}

std::string_view slot_of_first_replica(std::string_view stored_slot) {
  return stored_slot.substr(0, stored_slot.find('@'));
}

std::string StoredRange::stored_slot() const { return slot_of_replica(slot, replica); }

std::vector<StoredRange> stored_ranges(const Program& program) {
  constexpr size_t kUsual = 5;  // the usual number of ranges of a variable, for which memory is reserved
  std::vector<StoredRange> ranges;
  ranges.reserve(kUsual * program.variables.size());
  for (const Variable& v : program.variables) {
    if (v.is_cache) continue;
    if (v.bucket < 0) {
      ranges.push_back(range_of_state(v, v.kind == TensorKind::parameter ? kWeightSlot : kStateSlot));
      if (v.kind == TensorKind::state) ranges.back().replica = program.replica;
      continue;
    }
    const Bucket& bucket = program.buckets[static_cast<size_t>(v.bucket)];
    // The weights are pulled from a server again in each step.
    if ((bucket.served && program.server < 0) || bucket.table) continue;
    check(bucket.optimizer_states.size() == bucket.optimizer_offsets.size(), "each state of an optimizer has a name");
    const int replica = bucket.outer_momentum_offset >= 0 ? program.replica : 0;  // frozen: the same on all replicas
    const auto slot_of = [&](std::string_view slot, int of_replica) {
      return Slot(v, bucket, {.slot = slot, .replica = of_replica}, ranges);
    };
    slot_of(kWeightSlot, replica).add(bucket.weights_offset, bucket.weights_are_cut());
    Slot(v, bucket, {.slot = kWeightSlot, .dtype = bucket.compute_type, .is_copy = bucket.weights_offset >= 0}, ranges)
        .add(bucket.compute_offset, bucket.level == 3);
    for (size_t i = 0; i < bucket.optimizer_offsets.size() && bucket.scale_offsets.empty(); ++i)
      Slot(v, bucket, {.slot = bucket.optimizer_states[i], .dtype = bucket.state_type, .replica = replica}, ranges)
          .add(bucket.optimizer_offsets[i], bucket.level > 0);
    if (!bucket.computes_average()) slot_of(kAverageSlot, 0).add(bucket.average_offset, bucket.level > 0);
    slot_of(kOuterMomentumSlot, 0).add(bucket.outer_momentum_offset, bucket.level > 0);
  }
  for (const OtherState& state : program.other_states) {
    ranges.push_back(range_of_state(state.variable, state.slot));
    ranges.back().replica = program.replica;
  }
  for (StoredRange& range : ranges)
    if (is_stored_by_another(program, range)) range.own_count = 0;
  return ranges;
}

std::vector<StoredRange> gradient_ranges(const Program& program) {
  std::vector<StoredRange> ranges;
  for (const Variable& v : program.variables) {
    if (v.bucket < 0) continue;
    const Bucket& bucket = program.buckets[static_cast<size_t>(v.bucket)];
    // The gradients are pushed to a server, not used on this rank.
    if ((bucket.served && program.server < 0) || bucket.table) continue;
    Slot(v, bucket, {.slot = kGradientSlot, .dtype = bucket.kept_type}, ranges)
        .add(bucket.gradients_offset, bucket.level >= 2);
  }
  return ranges;
}

std::vector<Box> boxes_of(const Shape& shape, int64_t first, int64_t count) {
  const auto ndim = static_cast<int>(shape.size());
  std::vector<int64_t> strides(shape.size() + 1, 1);  // strides[d]: elements of a slice of the dims before d
  for (int d = ndim - 1; d >= 0; --d)
    strides[static_cast<size_t>(d)] = strides[static_cast<size_t>(d) + 1] * shape[static_cast<size_t>(d)];
  std::vector<Box> boxes;
  for (int64_t at = first, end = first + count; at < end;) {
    // The largest run of whole slices, along the outermost dim where `at` is between two slices.
    int d = 0;
    while (d < ndim &&
           (at % strides[static_cast<size_t>(d) + 1] != 0 || end - at < strides[static_cast<size_t>(d) + 1]))
      ++d;
    if (d == ndim) {  // a scalar
      boxes.push_back({Shape(shape.size(), 0), Shape(shape.size(), 1)});
      break;
    }
    const int64_t slice = strides[static_cast<size_t>(d) + 1], around = strides[static_cast<size_t>(d)];
    const int64_t stop = std::min(end, at / around * around + around);
    Box box{Shape(shape.size(), 0), shape};
    int64_t rest = at;
    for (int i = 0; i <= d; ++i) {
      const auto dim = static_cast<size_t>(i);
      box.offset[dim] = rest / strides[dim + 1];
      box.shape[dim] = 1;
      rest %= strides[dim + 1];
    }
    box.shape[static_cast<size_t>(d)] = (stop - at) / slice;
    at += box.shape[static_cast<size_t>(d)] * slice;
    boxes.push_back(std::move(box));
  }
  return boxes;
}

std::vector<Box> boxes_of(const Variable& variable, int64_t first, int64_t count) {
  std::vector<Box> boxes = boxes_of(variable.shape, first, count);
  for (Box& box : boxes)
    for (size_t d = 0; d < box.offset.size(); ++d) box.offset[d] += variable.offset[d];
  return boxes;
}

}  // namespace trainctl
