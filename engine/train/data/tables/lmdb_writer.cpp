// Writes LMDB environments (lmdb_pages.h has the format): the value of a column in row i has the key COLUMN-i, with 9
// digits and counted from 1, and `num-samples` is the number of rows. Columns that are called key and value are
// entries. Texts and bytes are stored as they are, a number as its digits, and arrays as .npy. A null is an entry that
// is missing.
//
// liblmdb is not used for this alone: it wants the size of the file in advance and maps it, while this writer appends
// pages to a file that gets its name when it is complete. tests/train/tables reads the files back with the package
// lmdb.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/train/data/tables/part_file.h"
#include "engine/train/data/tables/table_writer.h"
#include "engine/train/files/input_file.h"
#include "engine/train/files/protocol_buffer.h"

namespace trainctl {
namespace {

constexpr size_t kPage = 4096, kPageHead = 16, kNodeHead = 8;
constexpr size_t kMostNode = ((kPage - kPageHead) / 2 & ~size_t{1}) - 2;  ///< larger values have pages of their own
constexpr size_t kMostKey = 511;

struct StoredEntry {
  std::string key;
  int64_t at = 0;  ///< in the file of values
  uint32_t bytes = 0;
};

/// Pages in the order of their numbers. Without a file it only counts them.
struct PageSink {
  PartFile* file = nullptr;
  uint64_t next = 2, branches = 0, leaves = 0, overflows = 0;

  void write(std::string_view bytes) {
    if (file != nullptr) file->write(bytes);
  }
};

/// A leaf or a branch that is being filled, from both of its ends.
class TreePage {
 public:
  explicit TreePage(uint16_t flags) : flags_(flags) {}

  bool has_room(size_t node) const { return upper() >= kPageHead + 2 * (nodes_.size() + 1) + node; }
  bool is_empty() const { return nodes_.empty(); }
  void add(std::string node) {
    used_ += node.size();
    nodes_.push_back(std::move(node));
  }

  std::string take(uint64_t number) {
    const size_t lower = kPageHead + 2 * nodes_.size();
    std::string page, body;
    append_number(page, number);
    append_number(page, uint16_t{0});
    append_number(page, flags_);
    append_number(page, static_cast<uint16_t>(lower));
    append_number(page, static_cast<uint16_t>(upper()));
    size_t place = kPage;
    for (const std::string& node : nodes_) append_number(page, static_cast<uint16_t>(place -= node.size()));
    page.resize(upper(), '\0');
    for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) page += *node;
    nodes_.clear();
    used_ = 0;
    return page;
  }

 private:
  size_t upper() const { return kPage - used_; }

  uint16_t flags_;
  size_t used_ = 0;
  std::vector<std::string> nodes_;
};

/// The least key below a page, and its number.
using Children = std::vector<std::pair<std::string, uint64_t>>;

class LmdbWriter final : public TableWriter {
 public:
  explicit LmdbWriter(const TableWriterOptions& options) : columns_(options.columns) {
    for (const TableColumn& column : columns_) refuse_nested(column);
    make_folder_of(options.path);
    file_ = std::make_unique<PartFile>(options.path, options.replace);
    values_ = std::make_unique<PartFile>(options.path + ".values", true);
    is_by_key_ = columns_.size() == 2 && columns_[0].name == "key" && columns_[1].name == "value" &&
                 columns_[0].kind != ColumnKind::number;
  }

  void write(const TableFile& from, int64_t row, const std::vector<size_t>& columns) override {
    row_values_.resize(columns.size());
    from.read(row, columns, row_values_);
    ++rows_;
    if (is_by_key_) {
      add(std::string(row_values_[0].text()), value_of(1), from.where(row));
      return;
    }
    for (size_t i = 0; i < columns.size(); ++i)
      if (!row_values_[i].is_null) add(fmt::format("{}-{:09}", columns_[i].name, rows_), value_of(i), from.where(row));
  }

  void finish() override {
    if (!is_by_key_) add("num-samples", std::to_string(rows_), "the number of rows");
    std::sort(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
    for (size_t e = 1; e < entries_.size(); ++e)
      if (entries_[e].key == entries_[e - 1].key)
        throw EnvError("the key '" + printable(entries_[e].key) + "' occurs twice, which LMDB cannot hold");
    const InputFile values(values_->part_path());
    PageSink counted, written{file_.get()};
    const auto [root, depth] = write_tree(counted, nullptr);
    for (uint64_t meta = 0; meta < 2; ++meta) file_->write(meta_page(meta, root, depth, counted));
    (void)write_tree(written, &values);
    file_->finish();
  }

 private:
  std::string value_of(size_t i) const {
    const TableColumn& column = columns_[i];
    const TableValue& value = row_values_[i];
    if (column.kind != ColumnKind::number) return std::string(value.text());
    if (value.shape.empty()) {
      const double number = stored_as_double(column.element, value.bytes.data());
      int64_t whole = 0;
      if (column.element == StoredElement::i64) std::memcpy(&whole, value.bytes.data(), sizeof whole);
      return column.element == StoredElement::i64 ? std::to_string(whole) : fmt::format("{}", number);
    }
    const std::vector<uint8_t> bytes = numpy_elements(column.element, value.bytes);
    return numpy_head(column.element, value.shape, -1) + std::string(bytes.begin(), bytes.end());
  }

  void add(std::string key, const std::string& value, const std::string& where) {
    constexpr size_t kMostValue = size_t{1} << 31;
    if (key.empty() || key.size() > kMostKey)
      throw EnvError(fmt::format("{}: the key '{}' needs 1 to {} bytes", where, printable(key), kMostKey));
    if (value.size() >= kMostValue) throw EnvError(where + ": a value is too large for LMDB");
    entries_.push_back({std::move(key), values_->bytes(), static_cast<uint32_t>(value.size())});
    values_->write(value);
  }

  /// Writes all pages that follow the two meta pages; without `values` they are only counted. Returns the page of the
  /// root, and the depth.
  std::pair<uint64_t, uint16_t> write_tree(PageSink& sink, const InputFile* values) const {
    if (entries_.empty()) return {~uint64_t{0}, uint16_t{0}};
    Children level = write_leaves(sink, values);
    uint16_t depth = 1;
    for (; level.size() > 1; ++depth) level = write_branches(sink, level);
    return {level.front().second, depth};
  }

  /// Writes the leaf pages, each followed by the pages of its large values. Returns the first key and the page number
  /// of each leaf.
  Children write_leaves(PageSink& sink, const InputFile* values) const {
    constexpr uint16_t kLeafPage = 2, kBig = 1;
    Children leaves;
    TreePage page(kLeafPage);
    std::string large;  // pages of values, which follow their leaf
    const auto end_page = [&] {
      sink.write(page.take(leaves.back().second));
      sink.write(large);
      large.clear();
      ++sink.leaves;
    };
    for (const StoredEntry& entry : entries_) {
      const bool is_big = kNodeHead + entry.key.size() + entry.bytes > kMostNode;
      const size_t size = (kNodeHead + entry.key.size() + (is_big ? 8 : entry.bytes) + 1) & ~size_t{1};
      if (!page.is_empty() && !page.has_room(size)) end_page();
      if (page.is_empty()) leaves.emplace_back(entry.key, sink.next++);
      std::string node;
      append_number(node, entry.bytes);
      append_number(node, is_big ? kBig : uint16_t{0});
      append_number(node, static_cast<uint16_t>(entry.key.size()));
      node += entry.key;
      if (is_big)
        append_number(node, add_large(sink, entry, values, large));
      else
        node += value_bytes(entry, values);
      node.resize(size, '\0');
      page.add(std::move(node));
    }
    end_page();
    return leaves;
  }

  /// Returns the number of the first page of a large value.
  uint64_t add_large(PageSink& sink, const StoredEntry& entry, const InputFile* values, std::string& large) const {
    constexpr uint16_t kOverflowPage = 4;
    const uint64_t first = sink.next, pages = (kPageHead + entry.bytes + kPage - 1) / kPage;
    sink.next += pages;
    sink.overflows += pages;
    if (values == nullptr) return first;
    const size_t end = large.size() + pages * kPage;
    append_number(large, first);
    append_number(large, uint16_t{0});
    append_number(large, kOverflowPage);
    append_number(large, static_cast<uint32_t>(pages));
    large += value_bytes(entry, values);
    large.resize(end, '\0');
    return first;
  }

  static std::string value_bytes(const StoredEntry& entry, const InputFile* values) {
    std::string bytes(entry.bytes, '\0');
    if (values != nullptr && !bytes.empty())
      values->read(entry.at, {reinterpret_cast<uint8_t*>(bytes.data()), bytes.size()});
    return bytes;
  }

  /// Writes one level of branch pages above `below`. Returns the least key and the page number of each.
  static Children write_branches(PageSink& sink, const Children& below) {
    constexpr uint16_t kBranchPage = 1;
    Children branches;
    TreePage page(kBranchPage);
    for (const auto& [least, number] : below) {
      const size_t size = (kNodeHead + least.size() + 1) & ~size_t{1};
      if (!page.is_empty() && !page.has_room(size)) {
        sink.write(page.take(branches.back().second));
        ++sink.branches;
      }
      std::string node;
      const bool is_first = page.is_empty();  // its key is less than all others, and is left out
      if (is_first) branches.emplace_back(least, sink.next++);
      append_number(node, static_cast<uint16_t>(number));
      append_number(node, static_cast<uint16_t>(number >> 16));
      append_number(node, static_cast<uint16_t>(number >> 32));
      append_number(node, static_cast<uint16_t>(is_first ? 0 : least.size()));
      if (!is_first) node += least;
      node.resize((node.size() + 1) & ~size_t{1}, '\0');
      page.add(std::move(node));
    }
    sink.write(page.take(branches.back().second));
    ++sink.branches;
    return branches;
  }

  /// One of the two meta pages. `root`, `depth`: those of the tree of entries.
  std::string meta_page(uint64_t number, uint64_t root, uint16_t depth, const PageSink& counted) const {
    constexpr uint16_t kMetaPage = 8;
    std::string page;
    append_number(page, number);
    append_number(page, uint16_t{0});
    append_number(page, kMetaPage);
    append_number(page, uint32_t{0});
    append_number(page, uint32_t{0xBEEFC0DE});
    append_number(page, uint32_t{1});
    append_number(page, uint64_t{0});
    append_number(page, counted.next * kPage);  // the size of the map
    constexpr uint16_t kIntegerKeys = 8;
    const auto database = [&](uint32_t pad, uint16_t tree_depth, const PageSink& pages, uint64_t entries, uint64_t at) {
      append_number(page, pad);
      append_number(page, pad > 0 ? kIntegerKeys : uint16_t{0});
      append_number(page, tree_depth);
      for (const uint64_t count : {pages.branches, pages.leaves, pages.overflows, entries, at})
        append_number(page, count);
    };
    database(kPage, 0, PageSink{}, 0, ~uint64_t{0});  // the free pages
    database(0, depth, counted, entries_.size(), root);
    append_number(page, counted.next - 1);
    append_number(page, number);  // transaction: the second meta counts
    page.resize(kPage, '\0');
    return page;
  }

  std::vector<TableColumn> columns_;
  std::unique_ptr<PartFile> file_, values_;  ///< values: a file that never gets its name
  bool is_by_key_ = false;
  int64_t rows_ = 0;
  std::vector<TableValue> row_values_;
  std::vector<StoredEntry> entries_;
};

}  // namespace

std::unique_ptr<TableWriter> write_lmdb(const TableWriterOptions& options) {
  return std::make_unique<LmdbWriter>(options);
}

}  // namespace trainctl
