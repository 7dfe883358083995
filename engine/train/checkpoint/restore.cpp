// Restores a checkpoint into the arenas of any plan.
#include "engine/train/checkpoint/restore.h"

#include <algorithm>

#include "engine/ops/optimizer_def.h"
#include "engine/runtime/stored_ranges.h"
#include "engine/train/checkpoint/table_slot.h"

namespace trainctl {
namespace {

/// The slot of the checkpoint from which a range is restored.
std::string slot_of(const Manifest& manifest, const StoredRange& range, WeightsRead read) {
  const std::string& name = range.variable->name;
  const bool has_average = manifest.find(name, kAverageSlot) != nullptr;
  if (range.slot == kWeightSlot && read == WeightsRead::averages && has_average) return std::string(kAverageSlot);
  // If the average is new in this run, it starts from the weights.
  if (range.slot == kAverageSlot && !has_average) return std::string(kWeightSlot);
  if (range.replica == 0 || manifest.find(name, range.stored_slot()) != nullptr) return range.stored_slot();
  // A replica that the checkpoint does not have starts from the outer weights and the optimizer state of the first one.
  return std::string(range.slot == kWeightSlot && has_average ? kAverageSlot : range.slot);
}

/// Elements that are read at a time, so that no buffer is as large as a tensor.
constexpr int64_t kMostElements = int64_t{4} << 20;

/// Fills a range of this rank from `slot` of the checkpoint.
void restore_range(const StoredRange& range, std::string_view slot, PieceReader& reader, Executor& executor,
                   const std::function<void()>& on_progress) {
  std::vector<std::byte> buffer;
  for (int64_t at = 0; at < range.count; at += kMostElements) {
    const int64_t count = std::min(kMostElements, range.count - at);
    buffer.resize(static_cast<size_t>(count * byte_size(range.dtype)));
    std::byte* to = buffer.data();
    for (const Box& box : boxes_of(*range.variable, range.first + at, count)) {
      reader.read(range.variable->name, slot, box, range.dtype, to);
      to += num_elements(box.shape) * byte_size(range.dtype);
    }
    executor.write(range.offset + at * byte_size(range.dtype), buffer.data(), static_cast<int64_t>(buffer.size()));
    if (on_progress) on_progress();
  }
}

/// Fills the rows of a range that one server saved of a table. Other rows keep their values.
void restore_rows(const StoredRange& range, const StoredTensor& ids, PieceReader& reader, Executor& executor) {
  const std::string& name = range.variable->name;
  const TableSlot of_ids = *parse_table_slot(ids.slot);
  const std::string slot = table_slot(range.slot, of_ids.server, of_ids.is_changed);
  const StoredTensor* rows = reader.manifest().find(name, slot);
  if (rows == nullptr || !is_rows_of(range.variable->global_shape, rows->shape)) return;
  const int64_t width = byte_size(range.dtype), at_a_time = std::max<int64_t>(1, kMostElements / rows->shape[1]);
  std::vector<int32_t> numbers;
  std::vector<std::byte> values;
  for (int64_t first = 0; first < ids.shape[0]; first += at_a_time) {
    const int64_t count = std::min(at_a_time, ids.shape[0] - first);
    numbers.resize(static_cast<size_t>(count));
    reader.read(name, ids.slot, {{first}, {count}}, DType::i32, numbers.data());
    int64_t to = range.offset;
    for (const Box& box : boxes_of(*range.variable, range.first, range.count)) {
      const int64_t row_bytes = box.shape[1] * width;
      values.resize(static_cast<size_t>(count * row_bytes));
      reader.read(name, slot, {{first, box.offset[1]}, {count, box.shape[1]}}, range.dtype, values.data());
      for (int64_t i = 0; i < count; ++i) {
        const int64_t row = numbers[static_cast<size_t>(i)] - box.offset[0];
        if (row >= 0 && row < box.shape[0])
          executor.write(to + row * row_bytes, values.data() + i * row_bytes, row_bytes);
      }
      to += box.shape[0] * row_bytes;
    }
  }
}

}  // namespace

void restore(const Program& program, PieceReader& reader, Executor& executor, WeightsRead read,
             const std::function<void()>& on_progress) {
  for (const StoredRange& range : stored_ranges(program)) {
    if (range.count == 0) continue;
    const std::string slot = slot_of(reader.manifest(), range, read);
    const StoredTensor* tensor = reader.manifest().find(range.variable->name, slot);
    if (tensor == nullptr) {  // Either the tensor is saved as rows of a table, or require_same_state has allowed that
                              // it is missing.
      for (const StoredTensor* ids : saved_ids(reader.manifest(), range.variable->name))
        restore_rows(range, *ids, reader, executor);
    } else if (tensor->shape == range.variable->global_shape) {
      restore_range(range, slot, reader, executor, on_progress);
    }
  }
}

}  // namespace trainctl
