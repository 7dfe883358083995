// Stores the rows of a table that one server holds: makes, updates, saves and drops them.
#include "engine/train/servers/table_rows.h"

#include <algorithm>
#include <cstring>

#include "engine/base/error.h"
#include "engine/runtime/initial_weights.h"
#include "engine/runtime/stored_ranges.h"

namespace trainctl::servers {
namespace {

/// Elements that one call of the kernel updates.
constexpr int64_t kElementsAtATime = 16384;
constexpr size_t kFirstSlots = 1024;

size_t hash_of(int32_t id) {
  uint64_t x = static_cast<uint32_t>(id);
  x = (x ^ (x >> 16)) * 0x9E3779B97F4A7C15ull;
  return static_cast<size_t>(x ^ (x >> 29));
}

TensorArg flat(std::vector<float>& values) {
  TensorArg arg;
  arg.data = values.data();
  arg.shape = arg.global_shape = {static_cast<int64_t>(values.size())};
  arg.offset = {0};
  return arg;
}

}  // namespace

TableRows::TableRows(const ServedTable& table, const OptimizerSpec& spec, uint64_t seed, int threads,
                     const RowLife& life)
    : table_(table), life_(life), seed_(seed), slots_(kFirstSlots, -1) {
  const Optimizer optimizer(spec.type, spec.settings_of(table.group));
  slots_of_row_.emplace_back(kWeightSlot);
  for (const std::string& state : optimizer.states()) slots_of_row_.push_back(state);
  const size_t slots = slots_of_row_.size();
  stride_ = table.units * static_cast<int64_t>(slots);
  at_a_time_ = std::max<int64_t>(1, kElementsAtATime / table.units);
  const auto elements = static_cast<size_t>(at_a_time_ * table.units);
  gradients_.resize(elements);
  values_.assign(slots, std::vector<float>(elements));
  KernelCall call;
  call.in.push_back(flat(gradients_));
  if (spec.clip_norm > 0) {
    call.in.emplace_back();
    call.in.back().data = &norm_;
    call.in.back().shape = call.in.back().global_shape = {1};
    call.in.back().offset = {0};
  }
  for (std::vector<float>& of_slot : values_) call.out.push_back(flat(of_slot));
  call.attrs = optimizer.kernel_attrs();
  call.attrs.set("clip_norm", spec.clip_norm);
  if (spec.clip_value > 0) call.attrs.set("clip_value", spec.clip_value);
  if (const double scale = spec.learning_rate_scale(table.group); scale != 1)
    call.attrs.set("learning_rate_scale", scale);
  call.scalars = &scalars_;
  call.seed = seed;
  call.threads = threads;
  const CpuKernelDef* kernel = find_cpu_kernel(optimizer.def.kernel->name);
  check(kernel != nullptr, "an optimizer has a CPU kernel");
  update_ = kernel->prepare(call);
}

int64_t TableRows::find(int32_t id) const {
  for (size_t at = hash_of(id);; ++at) {
    const int32_t slot = slots_[at & (slots_.size() - 1)];
    if (slot < 0 || ids_[static_cast<size_t>(slot)] == id) return slot;
  }
}

int64_t TableRows::find_or_make(int32_t id) {
  if (const int64_t slot = find(id); slot >= 0) return slot;
  if (static_cast<size_t>(used_ + 1) * 2 > slots_.size()) grow();
  size_t at = hash_of(id);
  while (slots_[at & (slots_.size() - 1)] >= 0) ++at;
  slots_[at & (slots_.size() - 1)] = static_cast<int32_t>(used_);
  ids_.push_back(id);
  is_changed_.push_back(true);
  ++changed_rows_;
  if (life_.expire_after > 0) touched_.push_back(updates_);
  if (used_ % kRowsOfChunk == 0)
    chunks_.push_back(std::make_unique<float[]>(static_cast<size_t>(kRowsOfChunk * stride_)));
  float* values = row(used_);
  initial_values(table_.tensor, table_.init, seed_, id * table_.units, table_.units, values);
  std::fill(values + table_.units, values + stride_, 0.0f);  // a row that was dropped may have been there
  return used_++;
}

void TableRows::grow() {
  slots_.assign(slots_.size() * 2, -1);
  for (int64_t slot = 0; slot < used_; ++slot) {
    size_t at = hash_of(ids_[static_cast<size_t>(slot)]);
    while (slots_[at & (slots_.size() - 1)] >= 0) ++at;
    slots_[at & (slots_.size() - 1)] = static_cast<int32_t>(slot);
  }
}

/// Counts an update of a row that does not exist yet, and returns whether the row may now be made.
bool TableRows::is_admitted(int32_t id) {
  if (life_.admit_after <= 1) return true;
  if (sightings_.size() >= kMostSighted) sightings_.clear();
  const auto sighted = sightings_.try_emplace(id, 0).first;
  if (++sighted->second < life_.admit_after) return false;
  sightings_.erase(sighted);
  return true;
}

void TableRows::change(int64_t slot) {
  const auto at = static_cast<size_t>(slot);
  if (life_.expire_after > 0) touched_[at] = updates_;
  if (is_changed_[at]) return;
  is_changed_[at] = true;
  ++changed_rows_;
}

void TableRows::all_are_saved() {
  is_changed_.assign(is_changed_.size(), false);
  changed_rows_ = 0;
}

/// Drops a row. The last row moves to its place.
void TableRows::drop(int64_t slot) {
  const size_t mask = slots_.size() - 1;
  const auto entry_of = [&](int32_t id) {
    size_t at = hash_of(id) & mask;
    while (ids_[static_cast<size_t>(slots_[at])] != id) at = (at + 1) & mask;
    return at;
  };
  // Entries that follow move up, so that no search ends too early.
  size_t hole = entry_of(ids_[static_cast<size_t>(slot)]);
  for (size_t at = (hole + 1) & mask; slots_[at] >= 0; at = (at + 1) & mask) {
    const size_t wanted = hash_of(ids_[static_cast<size_t>(slots_[at])]) & mask;
    if (((at - wanted) & mask) < ((at - hole) & mask)) continue;
    slots_[hole] = slots_[at];
    hole = at;
  }
  slots_[hole] = -1;
  const int64_t last = used_ - 1;
  if (is_changed_[static_cast<size_t>(slot)]) --changed_rows_;
  if (slot != last) {
    const auto to = static_cast<size_t>(slot), from = static_cast<size_t>(last);
    slots_[entry_of(ids_[from])] = static_cast<int32_t>(slot);
    std::memcpy(row(slot), row(last), static_cast<size_t>(stride_) * sizeof(float));
    ids_[to] = ids_[from];
    touched_[to] = touched_[from];
    is_changed_[to] = is_changed_[from];
  }
  ids_.pop_back();
  touched_.pop_back();
  is_changed_.pop_back();
  used_ = last;
  if (used_ % kRowsOfChunk == 0) chunks_.pop_back();
}

/// Looks for expired rows among the next `slots` rows, starting where the last call stopped and continuing at the
/// beginning after the last row.
void TableRows::sweep(int64_t slots) {
  for (; slots > 0 && used_ > 0; --slots) {
    if (hand_ >= used_) hand_ = 0;
    if (is_expired(hand_))
      drop(hand_);
    else
      ++hand_;
  }
}

void TableRows::drop_expired() {
  if (life_.expire_after == 0) return;
  hand_ = 0;
  sweep(used_);
}

void TableRows::read(std::span<const int32_t> ids, float* out) const {
  rows_read_ += static_cast<int64_t>(ids.size());
  for (const int32_t id : ids) {
    if (const int64_t slot = find(id); slot >= 0 && !is_expired(slot))
      std::memcpy(out, row(slot), static_cast<size_t>(table_.units) * sizeof(float));
    else
      initial_values(table_.tensor, table_.init, seed_, id * table_.units, table_.units, out);
    out += table_.units;
  }
}

void TableRows::update(std::span<const int32_t> ids, const float* gradients, const float* norm,
                       const StepScalars& scalars) {
  scalars_ = scalars;
  if (norm != nullptr) norm_ = *norm;
  const auto units = static_cast<size_t>(table_.units), row_bytes = units * sizeof(float);
  rows_updated_ += static_cast<int64_t>(ids.size());
  for (const int32_t id : ids)  // first, as the last row takes the place of one that is dropped
    if (const int64_t slot = find(id); slot >= 0 && is_expired(slot)) drop(slot);
  ++updates_;
  std::vector<float*> rows;
  for (size_t next = 0; next < ids.size();) {
    rows.clear();
    for (; next < ids.size() && rows.size() < static_cast<size_t>(at_a_time_); ++next) {
      int64_t slot = find(ids[next]);
      if (slot < 0 && !is_admitted(ids[next])) continue;
      if (slot < 0) slot = find_or_make(ids[next]);
      change(slot);
      std::memcpy(gradients_.data() + rows.size() * units, gradients + next * units, row_bytes);
      rows.push_back(row(slot));
    }
    const size_t count = rows.size();
    std::fill(gradients_.begin() + static_cast<std::ptrdiff_t>(count * units), gradients_.end(), 0.0f);
    for (size_t v = 0; v < values_.size(); ++v)
      for (size_t i = 0; i < count; ++i) std::memcpy(values_[v].data() + i * units, rows[i] + v * units, row_bytes);
    update_();
    for (size_t v = 0; v < values_.size(); ++v)
      for (size_t i = 0; i < count; ++i) std::memcpy(rows[i] + v * units, values_[v].data() + i * units, row_bytes);
  }
  if (life_.expire_after > 0) sweep(2 * static_cast<int64_t>(ids.size()) + 16);
}

int64_t TableRows::bytes() const {
  return static_cast<int64_t>(chunks_.size()) * kRowsOfChunk * stride_ * static_cast<int64_t>(sizeof(float)) +
         static_cast<int64_t>((slots_.capacity() + ids_.capacity()) * sizeof(int32_t) +
                              touched_.capacity() * sizeof(int64_t) +
                              sightings_.size() * 4 * sizeof(int64_t));  // a node and its bucket
}

}  // namespace trainctl::servers
