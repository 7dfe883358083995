// LMDB environments as tables, read without liblmdb, which maps and trusts the file: 0.9.36 ends the process with
// SIGBUS if it is truncated, and cannot map an object of a store. Two layouts are in use:
//
//   an entry is a row        columns `key` and `value`
//   NAME-NUMBER is a value   image-000000001, label-000000001, …: a row per number, a column per name
//
// A value is text if it is UTF-8 in the first row, otherwise bytes (an image, a .npy). Keys that differ only in their
// number, such as 00000001, are of the first layout.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/url.h"
#include "engine/train/data/mapped_file.h"
#include "engine/train/data/tables/formats.h"
#include "engine/train/data/tables/lmdb_pages.h"
#include "engine/train/data/tables/plain_text.h"

namespace trainctl {
namespace {

/// "image-000000001" as its name and number; false for other keys.
bool split_key(std::string_view key, std::string_view& name, int64_t& number) {
  const size_t dash = key.rfind('-');
  if (dash == 0 || dash == std::string_view::npos || dash + 1 == key.size()) return false;
  name = key.substr(0, dash);
  const std::string_view digits = key.substr(dash + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return error == std::errc() && end == digits.data() + digits.size() && number >= 0;
}

class LmdbTable final : public TableFile {
 public:
  explicit LmdbTable(const std::string& path) : path_(shown_url(path)), file_(path) {
    entries_ = read_lmdb(file_.bytes(), path_);
    if (!group_by_number()) one_entry_per_row();
  }

  int64_t size() const override { return static_cast<int64_t>(rows_.size() / std::max<size_t>(columns_.size(), 1)); }
  const std::vector<TableColumn>& columns() const override { return columns_; }
  std::string where(int64_t row) const override {
    const int64_t entry = is_grouped_ ? rows_[static_cast<size_t>(row) * columns_.size()] : row;
    return fmt::format("{}: key {}", path_, entry < 0 ? "?" : printable(entries_[static_cast<size_t>(entry)].key));
  }
  int64_t memory_bytes() const override {
    return static_cast<int64_t>(entries_.size() * sizeof(LmdbEntry) + rows_.size() * sizeof(int64_t));
  }

  void read(int64_t row, std::span<const size_t> columns, std::span<TableValue> out) const override {
    for (size_t i = 0; i < columns.size(); ++i) {
      out[i].is_null = true;
      out[i].shape.clear();
      const int64_t entry = rows_[static_cast<size_t>(row) * columns_.size() + columns[i]];
      if (entry < 0) continue;
      const LmdbEntry& from = entries_[static_cast<size_t>(entry)];
      out[i].set_bytes(!is_grouped_ && columns[i] == 0 ? from.key : from.value);
    }
  }

 private:
  static ColumnKind kind_of(std::string_view value) {
    return is_plain_text(value) ? ColumnKind::text : ColumnKind::bytes;
  }

  /// False if the keys are not of the layout NAME-NUMBER.
  bool group_by_number() {
    std::map<std::string_view, size_t> names;
    std::map<int64_t, std::vector<std::pair<size_t, int64_t>>> numbered;
    for (size_t e = 0; e < entries_.size(); ++e) {
      std::string_view name;
      int64_t number = 0;
      if (entries_[e].key == "num-samples") continue;
      if (!split_key(entries_[e].key, name, number)) return false;
      const auto [at, is_new] = names.emplace(name, names.size());
      if (is_new) columns_.push_back({std::string(name), kind_of(entries_[e].value)});
      constexpr size_t kMostNames = 64;
      if (names.size() > kMostNames) return columns_.clear(), false;
      numbered[number].emplace_back(at->second, static_cast<int64_t>(e));
    }
    if (names.empty()) return false;
    is_grouped_ = true;
    for (const auto& [number, cells] : numbered) {
      const size_t first = rows_.size();
      rows_.resize(first + columns_.size(), -1);
      for (const auto& [column, entry] : cells) rows_[first + column] = entry;
    }
    return true;
  }

  void one_entry_per_row() {
    columns_ = {{"key", ColumnKind::text}, {"value", ColumnKind::bytes}};
    if (!entries_.empty()) {
      columns_[0].kind = kind_of(entries_[0].key);
      columns_[1].kind = kind_of(entries_[0].value);
    }
    for (size_t e = 0; e < entries_.size(); ++e) rows_.insert(rows_.end(), 2, static_cast<int64_t>(e));
  }

  std::string path_;
  MappedFile file_;
  std::vector<LmdbEntry> entries_;
  std::vector<TableColumn> columns_;
  bool is_grouped_ = false;
  std::vector<int64_t> rows_;  ///< rows x columns: the entry, or -1
};

}  // namespace

std::unique_ptr<TableFile> open_lmdb(const std::string& path) { return std::make_unique<LmdbTable>(path); }

}  // namespace trainctl
