// Writes the rows of a server's tables into its part of a checkpoint, and restores them from it.
#include "engine/train/servers/table_image.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/runtime/stored_ranges.h"
#include "engine/train/checkpoint/table_slot.h"
#include "engine/train/files/safetensors.h"

namespace trainctl::servers {
namespace {

constexpr int64_t kRowsAtATime = 16384;

std::string key(const TableRows& rows, std::string_view slot, int server, bool is_changed) {
  return rows.table().tensor + ":" + table_slot(slot, server, is_changed);
}

/// The memory of a save, mapped while it is filled.
class Mapping {
 public:
  Mapping(int fd, int64_t bytes) : size_(static_cast<size_t>(bytes)) {
    if (ftruncate(fd, bytes) != 0) fail("take", bytes);
    data_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data_ == MAP_FAILED) fail("map", bytes);
  }
  ~Mapping() { munmap(data_, size_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* at(int64_t offset) const { return static_cast<std::byte*>(data_) + offset; }

 private:
  [[noreturn]] static void fail(const char* what, int64_t bytes) {
    throw EnvError(fmt::format("cannot {} {} to save tables: {}; use more servers, or set train.checkpoint: none", what,
                               format_bytes(bytes), std::strerror(errno)));
  }

  const size_t size_;
  void* data_ = nullptr;
};

void copy_rows(const TableRows& rows, bool changed_alone, std::byte* ids, const std::vector<std::byte*>& values) {
  const auto row_bytes = static_cast<size_t>(rows.table().units) * sizeof(float);
  int64_t place = 0;
  rows.for_each(changed_alone, [&](int32_t id, const float* row) {
    std::memcpy(ids + place * int64_t{sizeof id}, &id, sizeof id);
    for (size_t v = 0; v < values.size(); ++v)
      std::memcpy(values[v] + static_cast<size_t>(place) * row_bytes, row + v * row_bytes / sizeof(float), row_bytes);
    ++place;
  });
}

/// The rows that one server saved of a table; or, without `ids`, the whole table, which a job without servers saved.
class SavedRows {
 public:
  SavedRows(PieceReader& reader, const StoredTensor* ids, const TableRows& rows)
      : reader_(reader), ids_(ids), table_(rows.table()), count_(ids == nullptr ? table_.rows : ids->shape[0]) {
    const Shape shape = {count_, table_.units};
    for (const std::string& slot : rows.slots()) {
      const auto of_ids = ids == nullptr ? std::nullopt : parse_table_slot(ids->slot);
      const std::string name = of_ids ? table_slot(slot, of_ids->server, of_ids->is_changed) : slot;
      const StoredTensor* found = reader.manifest().find(table_.tensor, name);
      stored_.push_back(found != nullptr && found->shape == shape ? found : nullptr);
    }
    values_.resize(stored_.size());
  }

  void read_into(TableRows& rows, int server, int servers) {
    const auto units = static_cast<size_t>(table_.units);
    for (int64_t first = 0; first < count_; first += kRowsAtATime) {
      read(first, std::min(kRowsAtATime, count_ - first));
      for (size_t i = 0; i < numbers_.size(); ++i) {
        if (owner_of_row(checked(numbers_[i]), servers) != server) continue;
        float* row = rows.make(numbers_[i]);
        for (size_t v = 0; v < stored_.size(); ++v)
          if (stored_[v] != nullptr) std::copy_n(values_[v].data() + i * units, units, row + v * units);
      }
    }
  }

 private:
  void read(int64_t first, int64_t count) {
    numbers_.resize(static_cast<size_t>(count));
    if (ids_ == nullptr)
      std::iota(numbers_.begin(), numbers_.end(), static_cast<int32_t>(first));
    else
      reader_.read(table_.tensor, ids_->slot, {{first}, {count}}, DType::i32, numbers_.data());
    for (size_t v = 0; v < stored_.size(); ++v) {
      if (stored_[v] == nullptr) continue;
      values_[v].resize(static_cast<size_t>(count * table_.units));
      reader_.read(table_.tensor, stored_[v]->slot, {{first, 0}, {count, table_.units}}, DType::f32, values_[v].data());
    }
  }

  int32_t checked(int32_t row) const {
    if (row >= 0 && row < table_.rows) return row;
    throw EnvError(fmt::format("{}:{} of the checkpoint contains row {}, but the table has {} rows", table_.tensor,
                               ids_->slot, row, with_commas(table_.rows)));
  }

  PieceReader& reader_;
  const StoredTensor* const ids_;
  const ServedTable& table_;
  const int64_t count_;
  std::vector<const StoredTensor*> stored_;  ///< by slot of a row; null: not there
  std::vector<int32_t> numbers_;             ///< ids of some rows; values_: their values, by slot
  std::vector<std::vector<float>> values_;
};

}  // namespace

TableImage::TableImage(int fd, int server, bool weights_only) : fd_(fd), server_(server), weights_only_(weights_only) {}

TableImage::~TableImage() { close(fd_); }

/// Names of the slots that are saved of a row: the first ones of its slots, or all.
std::vector<std::string> TableImage::slots_of(const TableRows& rows) const {
  return weights_only_ ? std::vector{rows.slots().front()} : rows.slots();
}

/// Returns whether an image of only the changed rows suffices. It does not if rows expire, because they would come back
/// from the file of all rows.
bool TableImage::changes_are_enough(std::span<const std::unique_ptr<TableRows>> tables) const {
  int64_t rows = 0, changed = 0;
  for (const auto& of_table : tables) {
    if (of_table->life().expire_after > 0) return false;
    rows += of_table->rows() * of_table->table().units;
    changed += of_table->changed_rows() * of_table->table().units;
  }
  return has_written_all_ && changed < rows / 2;
}

void TableImage::write(std::span<const std::unique_ptr<TableRows>> tables, bool may_save_changes) {
  for (const auto& rows : tables) rows->drop_expired();
  const bool changed_alone = may_save_changes && changes_are_enough(tables);
  const auto rows_of = [&](const TableRows& rows) { return changed_alone ? rows.changed_rows() : rows.rows(); };
  std::vector<SafetensorsEntry> entries;
  for (const auto& rows : tables) {
    const int64_t count = rows_of(*rows);
    if (count == 0) continue;
    entries.push_back(
        {.name = key(*rows, kIdsSlot, server_, changed_alone), .type = StoredType::i32, .shape = {count}});
    for (const std::string& slot : slots_of(*rows))
      entries.push_back({.name = key(*rows, slot, server_, changed_alone),
                         .type = StoredType::f32,
                         .shape = {count, rows->table().units}});
  }
  if (!changed_alone) has_written_all_ = !entries.empty();
  // An image of changes without any changed row still has a header. That distinguishes it from the image of a server
  // that has no rows at all.
  if (entries.empty() && !changed_alone) {
    if (ftruncate(fd_, 0) != 0) throw EnvError(std::string("cannot empty memory for tables: ") + std::strerror(errno));
    return;
  }
  const SafetensorsHeader header = lay_out(std::move(entries));
  const std::string head = safetensors_head(header);
  const Mapping memory(fd_, header.data_at + header.data_bytes());
  std::memcpy(memory.at(0), head.data(), head.size());
  const auto place_of = [&](const std::string& name) {
    const auto found = std::find_if(header.entries.begin(), header.entries.end(),
                                    [&](const SafetensorsEntry& entry) { return entry.name == name; });
    return memory.at(header.data_at + found->begin);
  };
  for (const auto& rows : tables) {
    if (rows_of(*rows) == 0) continue;
    std::vector<std::byte*> values;
    for (const std::string& slot : slots_of(*rows))
      values.push_back(place_of(key(*rows, slot, server_, changed_alone)));
    copy_rows(*rows, changed_alone, place_of(key(*rows, kIdsSlot, server_, changed_alone)), values);
  }
  if (changed_alone) return;
  for (const auto& rows : tables) rows->all_are_saved();
}

void restore_rows(PieceReader& reader, int server, int servers, TableRows& rows) {
  const std::string& tensor = rows.table().tensor;
  for (const StoredTensor* ids : saved_ids(reader.manifest(), tensor))
    SavedRows(reader, ids, rows).read_into(rows, server, servers);
  if (reader.manifest().find(tensor, kWeightSlot) != nullptr)
    SavedRows(reader, nullptr, rows).read_into(rows, server, servers);
}

}  // namespace trainctl::servers
