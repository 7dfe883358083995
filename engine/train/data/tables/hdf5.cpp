// HDF5 files as tables: a dataset is a column, whose rows are those of its first dim. libhdf5 is not used: 1.10.8 of
// Debian 12 ends with SIGSEGV on tests/fuzz/corpus/segfault_of_libhdf5.h5 (two bytes are damaged), CVE-2025-2915, 6750,
// 6816 and 7067 are heap overflows by crafted files in later versions, and it reads no ranges of object stores.
//
//   dataset                            column
//   integers, floats, booleans         numbers of the other dims; u64 as i64; enumerations have classes
//   texts, of fixed or any length      text
//   opaque                             bytes
//   lists of numbers of any length     numbers [?]; if the first one is an image or a .npy file, bytes
//   compound                           a column per member, NAME.MEMBER
//   no dims                            left out
//   others, several texts per row      nested: refused when the column is read
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "engine/base/checked.h"
#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/train/data/inflation.h"
#include "engine/train/data/tables/block_cache.h"
#include "engine/train/data/tables/formats.h"
#include "engine/train/data/tables/hdf5_chunks.h"
#include "engine/train/data/tables/hdf5_objects.h"

namespace trainctl {
namespace {

/// A decoded chunk of a dataset, or a collection of the file's global heap.
struct Hdf5Block final : public CachedBlock {
  std::vector<uint8_t> bytes;
};

/// A dataset, or one member of a compound dataset.
struct Hdf5Column {
  size_t set = 0;
  uint64_t at = 0;  ///< offset in a value
  Hdf5Type type;
  std::string problem;
};

class Hdf5Set {
 public:
  Hdf5Set(const Hdf5Bytes& file, Hdf5Dataset set) : file_(file), set_(std::move(set)) {
    row_bytes_ = static_cast<int64_t>(set_.type.bytes);
    for (size_t d = 1; d < set_.dims.size(); ++d) row_bytes_ = capped_product(row_bytes_, set_.dims[d]);
    if (!set_.problem.empty()) return;
    const std::string& path = file.file.path();
    const int64_t bytes = capped_product(row_bytes_, rows()), file_bytes = file.file.bytes();
    const bool is_written = set_.storage == Hdf5Storage::contiguous && set_.address != kNoHdf5Address;
    if (is_written && (static_cast<uint64_t>(bytes) > set_.bytes || set_.bytes > static_cast<uint64_t>(file_bytes) ||
                       set_.address > static_cast<uint64_t>(file_bytes) - set_.bytes))
      fail_hdf5(path, "'" + printable(shortened(set_.name)) + "' is outside of the file");
    if (set_.storage == Hdf5Storage::compact && static_cast<uint64_t>(bytes) > set_.compact.size())
      fail_hdf5(path, "'" + printable(shortened(set_.name)) + "' has more values than bytes");
    const int64_t chunk = set_.chunk.empty() ? 0 : static_cast<int64_t>(hdf5_chunk_bytes(set_));
    if (!may_inflate(file_bytes, bytes) || !may_inflate(file_bytes, chunk))
      throw EnvError(
          fmt::format("{}: '{}' has more than 100 times the size of the file; if it is correct, write it "
                      "without compression",
                      path, printable(shortened(set_.name))));
    set_.problem = hdf5_filter_problem(set_);
  }

  const Hdf5Dataset& header() const { return set_; }
  int64_t rows() const { return set_.dims[0]; }
  int64_t row_bytes() const { return row_bytes_; }

  void expect(int64_t row) const {
    if (set_.storage == Hdf5Storage::contiguous && set_.address != kNoHdf5Address)
      file_.file.expect(static_cast<int64_t>(set_.address) + row * row_bytes_, row_bytes_);
    if (set_.storage != Hdf5Storage::chunked || !has_chunks_) return;
    const std::vector<uint64_t> grid = hdf5_chunk_grid(set_);
    uint64_t each = 1;
    for (size_t d = 1; d < grid.size(); ++d) each *= grid[d];
    const uint64_t first = static_cast<uint64_t>(row) / set_.chunk[0] * each;
    for (uint64_t c = first; c < first + each; ++c)
      if (const auto chunk = chunks_.find(c); chunk != chunks_.end())
        file_.file.expect(static_cast<int64_t>(chunk->second.address), static_cast<int64_t>(chunk->second.bytes));
  }

  /// All values of a row.
  void read(int64_t row, std::vector<uint8_t>& out) const {
    out.assign(static_cast<size_t>(row_bytes_), 0);
    const auto at = static_cast<uint64_t>(row * row_bytes_);
    if (set_.storage == Hdf5Storage::compact) {
      std::copy_n(set_.compact.begin() + static_cast<int64_t>(at), out.size(), out.begin());
    } else if (set_.storage == Hdf5Storage::contiguous && set_.address != kNoHdf5Address) {
      file_.file.read(static_cast<int64_t>(set_.address + at), out);
    } else {
      for (size_t i = 0; !set_.fill.empty() && i < out.size(); ++i) out[i] = set_.fill[i % set_.fill.size()];
      if (set_.storage == Hdf5Storage::chunked) read_chunked(row, out);
    }
  }

 private:
  const Hdf5Chunks& chunks() const {
    if (has_chunks_) return chunks_;
    const std::lock_guard lock(mutex_);
    if (!has_chunks_) {
      chunks_ = read_hdf5_chunks(file_, set_);
      has_chunks_ = true;
    }
    return chunks_;
  }

  void read_chunked(int64_t row, std::vector<uint8_t>& out) const {
    const Hdf5Chunks& chunks = this->chunks();
    const std::vector<uint64_t> grid = hdf5_chunk_grid(set_);
    std::vector<uint64_t> place(grid.size(), 0);  // of a chunk, in the grid
    place[0] = static_cast<uint64_t>(row) / set_.chunk[0];
    for (bool has_more = true; has_more;) {
      uint64_t number = 0;
      for (size_t d = 0; d < grid.size(); ++d) number = number * grid[d] + place[d];
      if (const auto chunk = chunks.find(number); chunk != chunks.end()) {
        const auto block = blocks_.get(static_cast<int64_t>(number), [&] { return load(chunk->second); });
        copy_part(static_cast<const Hdf5Block&>(*block).bytes, row, place, out);
      }
      has_more = false;
      for (size_t d = grid.size(); d-- > 1 && !has_more;) {
        has_more = ++place[d] < grid[d];
        if (!has_more) place[d] = 0;
      }
    }
  }

  BlockCache::Loaded load(const Hdf5Chunk& chunk) const {
    auto block = std::make_shared<Hdf5Block>();
    block->bytes = read_hdf5_chunk(file_, set_, chunk);
    return {block, static_cast<int64_t>(block->bytes.size())};
  }

  /// Copies those values of a row that a chunk has.
  void copy_part(const std::vector<uint8_t>& chunk, int64_t row, const std::vector<uint64_t>& place,
                 std::vector<uint8_t>& out) const {
    uint64_t inside = static_cast<uint64_t>(row) % set_.chunk[0];
    for (size_t d = 1; d < set_.chunk.size(); ++d) inside *= set_.chunk[d];
    copy_dim(1, chunk.data() + inside * set_.type.bytes, place, out.data());
  }
  /// Copies from dim `dim` on. `from` and `to` are the positions in the chunk and in the row at which the values of
  /// this dim begin.
  void copy_dim(size_t dim, const uint8_t* from, const std::vector<uint64_t>& place, uint8_t* to) const {
    if (dim >= set_.dims.size()) {
      std::copy_n(from, set_.type.bytes, to);
      return;
    }
    uint64_t from_each = set_.type.bytes, to_each = set_.type.bytes;
    for (size_t d = dim + 1; d < set_.dims.size(); ++d) {
      from_each *= set_.chunk[d];
      to_each *= static_cast<uint64_t>(set_.dims[d]);
    }
    const uint64_t begin = place[dim] * set_.chunk[dim];
    const uint64_t count = std::min(set_.chunk[dim], static_cast<uint64_t>(set_.dims[dim]) - begin);
    to += begin * to_each;
    if (dim + 1 == set_.dims.size()) {
      std::copy_n(from, count * from_each, to);
      return;
    }
    for (uint64_t i = 0; i < count; ++i) copy_dim(dim + 1, from + i * from_each, place, to + i * to_each);
  }

  const Hdf5Bytes& file_;
  Hdf5Dataset set_;
  int64_t row_bytes_ = 0;
  mutable std::mutex mutex_;
  mutable std::atomic<bool> has_chunks_ = false;
  mutable Hdf5Chunks chunks_;
  BlockCache blocks_;
};

class Hdf5Table final : public TableFile {
 public:
  explicit Hdf5Table(const std::string& path) : file_(path) {
    for (Hdf5Dataset& set : read_hdf5_datasets(file_))
      sets_.push_back(std::make_unique<Hdf5Set>(file_, std::move(set)));
    for (size_t s = 0; s < sets_.size(); ++s) {
      size_ = std::max(size_, sets_[s]->rows());
      const Hdf5Dataset& set = sets_[s]->header();
      if (set.type.kind == Hdf5Kind::compound)
        for (const Hdf5Member& member : set.type.members)
          add_column(s, set.name + "." + member.name, member.at, member.type);
      else
        add_column(s, set.name, 0, set.type);
    }
  }

  int64_t size() const override { return size_; }
  const std::vector<TableColumn>& columns() const override { return columns_; }
  std::string where(int64_t row) const override { return fmt::format("{}: row {}", file_.file.path(), row); }
  int64_t memory_bytes() const override { return static_cast<int64_t>(sets_.size() * sizeof(Hdf5Set)); }

  void choose(const std::vector<size_t>& columns) override {
    chosen_ = columns;
    if (columns.empty()) return;
    const auto rows_of = [&](size_t column) { return sets_[places_[column].set]->rows(); };
    size_ = rows_of(columns[0]);
    for (const size_t column : columns)
      if (rows_of(column) != size_)
        throw EnvError(fmt::format("{}: '{}' has {} rows, but '{}' has {}; choose columns of one length",
                                   file_.file.path(), printable(columns_[columns[0]].name), with_commas(size_),
                                   printable(columns_[column].name), with_commas(rows_of(column))));
  }

  void expect(int64_t row) const override {
    for (const size_t column : chosen_)
      if (const Hdf5Set& set = *sets_[places_[column].set]; row < set.rows()) set.expect(row);
  }

  void read(int64_t row, std::span<const size_t> columns, std::span<TableValue> out) const override {
    thread_local std::vector<uint8_t> bytes;
    for (size_t i = 0; i < columns.size(); ++i) {
      const Hdf5Column& column = places_[columns[i]];
      const Hdf5Set& set = *sets_[column.set];
      out[i].is_null = true;
      out[i].shape.clear();
      out[i].bytes.clear();
      if (row >= set.rows()) continue;
      try {
        if (!column.problem.empty()) throw EnvError(column.problem);
        set.read(row, bytes);
        read_value(column, std::span<const uint8_t>(bytes).subspan(column.at), columns_[columns[i]], out[i]);
      } catch (const EnvError& error) {
        const std::string what = error.what();
        throw EnvError(what.starts_with(file_.file.path())
                           ? what
                           : fmt::format("{}: '{}' {}", where(row), printable(columns_[columns[i]].name), what));
      }
    }
  }

 private:
  void add_column(size_t s, const std::string& name, uint64_t at, const Hdf5Type& type) {
    const Hdf5Dataset& set = sets_[s]->header();
    TableColumn column{name, ColumnKind::nested};
    Hdf5Column place{s, at, type, set.problem.empty() ? type.problem : set.problem};
    const bool is_one = set.dims.size() == 1;
    if (type.kind == Hdf5Kind::number && (is_one || set.type.kind != Hdf5Kind::compound)) {
      column.kind = ColumnKind::number;
      column.element = type.element;
      column.classes = type.classes;
      column.shape.assign(set.dims.begin() + 1, set.dims.end());
      column.shape.insert(column.shape.end(), type.shape.begin(), type.shape.end());
    } else if (type.kind == Hdf5Kind::lists && is_one) {
      column = {name, ColumnKind::number, type.element, {-1}};
      if (begins_with_file(place)) column = {name, ColumnKind::bytes};
    } else if ((type.kind == Hdf5Kind::fixed_text || type.kind == Hdf5Kind::texts) && is_one) {
      column.kind = ColumnKind::text;
    } else if (type.kind == Hdf5Kind::opaque && is_one) {
      column.kind = ColumnKind::bytes;
    } else if (place.problem.empty()) {
      place.problem = "has several texts or compound values per row, which is not supported";
    }
    columns_.push_back(std::move(column));
    places_.push_back(std::move(place));
  }

  /// Returns whether the first row is the content of a file.
  bool begins_with_file(const Hdf5Column& column) const {
    const Hdf5Set& set = *sets_[column.set];
    if (column.type.element != StoredElement::u8 || !column.problem.empty() || set.rows() == 0) return false;
    std::vector<uint8_t> bytes;
    TableValue value;
    try {
      set.read(0, bytes);
      read_from_heap(column.type, std::span<const uint8_t>(bytes).subspan(column.at), value);
    } catch (const EnvError&) {
      return false;  // the error shows when the row is read
    }
    const std::string_view text = value.text();
    return text.starts_with("\xff\xd8\xff") || text.starts_with("\x89PNG") || text.starts_with("\x93NUMPY");
  }

  void read_value(const Hdf5Column& column, std::span<const uint8_t> from, const TableColumn& as,
                  TableValue& out) const {
    const Hdf5Type& type = column.type;
    if (type.kind == Hdf5Kind::number) {
      out.shape = as.shape;
      const auto elements = static_cast<uint64_t>(num_elements(as.shape));
      return set_numbers(type, from.first(elements * static_cast<uint64_t>(byte_size(type.element))), out);
    }
    if (type.kind == Hdf5Kind::texts || type.kind == Hdf5Kind::lists) {
      read_from_heap(type, from, out);
      if (as.kind == ColumnKind::bytes) out.shape.clear();
      return;
    }
    std::string_view text(reinterpret_cast<const char*>(from.data()), type.bytes);
    if (type.kind == Hdf5Kind::fixed_text) {
      if (!type.is_space_padded) text = text.substr(0, text.find('\0'));
      if (type.is_space_padded) text = text.substr(0, text.find_last_not_of(' ') + 1);
    }
    out.set_bytes(text);
  }

  static void set_numbers(const Hdf5Type& type, std::span<const uint8_t> from, TableValue& out) {
    out.is_null = false;
    out.bytes.assign(from.begin(), from.end());
    const auto width = static_cast<size_t>(byte_size(type.element));
    if (type.is_big_endian)
      for (size_t at = 0; at + width <= out.bytes.size(); at += width)
        std::reverse(out.bytes.begin() + static_cast<int64_t>(at),
                     out.bytes.begin() + static_cast<int64_t>(at + width));
    if (!type.is_unsigned_64) return;
    for (size_t at = 7; at < out.bytes.size(); at += 8)
      if ((out.bytes[at] & 0x80) != 0) throw EnvError("has a number that exceeds 63 bits, which is not supported");
  }

  /// A reference is the count of values, the address of a collection, and the number of an object in it.
  void read_from_heap(const Hdf5Type& type, std::span<const uint8_t> from, TableValue& out) const {
    Hdf5Cursor reference(from, file_.file.path());
    const uint64_t count = reference.u32(), address = file_.address(reference), object = reference.u32();
    const bool is_text = type.kind == Hdf5Kind::texts;
    const uint64_t bytes = count * (is_text ? 1 : static_cast<uint64_t>(byte_size(type.element)));
    if (!is_text) out.shape = {static_cast<int64_t>(count)};
    if (count == 0) return set_numbers({}, {}, out);
    const auto block = heap_.get(static_cast<int64_t>(address), [&] { return load_collection(address); });
    const auto found = object_of(static_cast<const Hdf5Block&>(*block).bytes, object);
    if (bytes > found.size()) fail_hdf5(file_.file.path(), "a value exceeds its object in the heap");
    if (is_text) return out.set_bytes({reinterpret_cast<const char*>(found.data()), static_cast<size_t>(bytes)});
    set_numbers(type, found.first(bytes), out);
  }

  uint64_t collection_head() const { return 8 + file_.length_bytes; }

  BlockCache::Loaded load_collection(uint64_t address) const {
    if (address == kNoHdf5Address) fail_hdf5(file_.file.path(), "a value refers to no heap");
    const std::vector<uint8_t> head = file_.read(address, collection_head());
    Hdf5Cursor from(head, file_.file.path());
    from.expect("GCOL");
    from.skip(4);
    auto block = std::make_shared<Hdf5Block>();
    block->bytes = file_.read(address, file_.length(from));
    return {block, static_cast<int64_t>(block->bytes.size())};
  }

  std::span<const uint8_t> object_of(std::span<const uint8_t> collection, uint64_t wanted) const {
    Hdf5Cursor from(collection, file_.file.path());
    from.skip(collection_head());
    while (from.left() >= collection_head()) {
      const uint64_t number = from.number(2);
      from.skip(6);
      const uint64_t bytes = file_.length(from);
      if (number == 0) break;  // the rest is free
      if (bytes > from.left()) from.fail("an object of the heap exceeds its collection");
      const auto object = from.take(bytes);
      if (number == wanted) return object;
      from.skip(std::min<size_t>((8 - bytes % 8) % 8, from.left()));
    }
    from.fail("a value refers to an object that is not in the heap");
  }

  Hdf5Bytes file_;
  std::vector<std::unique_ptr<Hdf5Set>> sets_;
  std::vector<TableColumn> columns_;
  std::vector<Hdf5Column> places_;
  std::vector<size_t> chosen_;
  int64_t size_ = 0;
  BlockCache heap_;
};

}  // namespace

std::unique_ptr<TableFile> open_hdf5(const std::string& path) { return std::make_unique<Hdf5Table>(path); }

}  // namespace trainctl
