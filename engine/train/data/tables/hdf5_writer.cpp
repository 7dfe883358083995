// Writes HDF5 files in their oldest form, which every version of the library reads: superblock 0, one group, and a
// contiguous dataset per column. Booleans are an enumeration, as h5py has them; texts are of any length, in UTF-8;
// bytes are lists of u8. The layout, in the order of the file:
//
//   superblock  header of the root  heap of names  tree  symbols  (header of a dataset  its data  its texts){columns}
//
// libhdf5 is not used for this alone: it would bring libcurl and libaec into the binary, whose reader cannot use it
// (hdf5.cpp). tests/train/tables reads the files back with h5py.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/train/data/tables/part_file.h"
#include "engine/train/data/tables/table_writer.h"
#include "engine/train/files/input_file.h"
#include "engine/train/files/protocol_buffer.h"

namespace trainctl {
namespace {

constexpr uint64_t kNowhere = ~uint64_t{0};

std::string number_text(StoredElement element) {
  const auto bytes = static_cast<uint32_t>(byte_size(element));
  std::string type;
  const bool is_float = element_type(element) == ElementType::f32 || element == StoredElement::bf16;
  if (element == StoredElement::boolean) {
    append_number(type, uint8_t{0x18});  // an enumeration of two
    type += std::string("\2\0\0", 3);
    append_number(type, uint32_t{1});
    type += number_text(StoredElement::i8);
    type += std::string("FALSE\0\0\0TRUE\0\0\0\0\0\1", 18);
    return type;
  }
  const bool is_signed = element == StoredElement::i8 || element == StoredElement::i16 ||
                         element == StoredElement::i32 || element == StoredElement::i64;
  append_number(type, static_cast<uint8_t>(is_float ? 0x11 : 0x10));
  const uint8_t sign_bit = bytes == 2 ? 15 : bytes == 4 ? 31 : 63;
  append_number(type, static_cast<uint8_t>(is_float ? 0x20 : is_signed ? 8 : 0));  // 0x20: the first bit is implied
  append_number(type, static_cast<uint8_t>(is_float ? sign_bit : 0));
  append_number(type, uint8_t{0});
  append_number(type, bytes);
  append_number(type, uint16_t{0});
  append_number(type, static_cast<uint16_t>(8 * bytes));
  if (!is_float) return type;
  const uint8_t mantissa = bytes == 2 ? 10 : bytes == 4 ? 23 : 52, exponent = sign_bit - mantissa;
  for (const uint8_t part : {mantissa, exponent, uint8_t{0}, mantissa}) append_number(type, part);
  append_number(type, (uint32_t{1} << (exponent - 1)) - 1);
  return type;
}

/// Texts are lists of characters, bytes are lists of u8, both in the global heap.
std::string list_type(bool is_text) {
  std::string type;
  append_number(type, uint8_t{0x19});
  type += is_text ? std::string("\1\1\0", 3) : std::string(3, '\0');  // zero-terminated, UTF-8
  append_number(type, uint32_t{16});
  return type + number_text(StoredElement::u8);
}

void append_message(std::string& header, uint16_t type, std::string body) {
  body.resize((body.size() + 7) / 8 * 8, '\0');
  append_number(header, type);
  append_number(header, static_cast<uint16_t>(body.size()));
  append_number(header, uint32_t{0});
  header += body;
}

std::string object_header(uint16_t messages, const std::string& body) {
  std::string header;
  append_number(header, uint8_t{1});
  append_number(header, uint8_t{0});
  append_number(header, messages);
  append_number(header, uint32_t{1});
  append_number(header, static_cast<uint32_t>(body.size()));
  append_number(header, uint32_t{0});
  return header + body;
}

class Hdf5Writer final : public TableWriter {
 public:
  explicit Hdf5Writer(const TableWriterOptions& options) : file_(options.path, options.replace) {
    for (const TableColumn& column : options.columns) {
      refuse_nested(column);
      Column& one = columns_.emplace_back();
      one.column = column;
      if (one.column.element == StoredElement::bf16) one.column.element = StoredElement::f32;
      one.is_wide = column.element == StoredElement::bf16;
      std::replace(one.column.name.begin(), one.column.name.end(), '/', '_');
      one.values = std::make_unique<PartFile>(fmt::format("{}.{}", options.path, columns_.size()), true);
    }
    std::sort(columns_.begin(), columns_.end(),
              [](const Column& a, const Column& b) { return a.column.name < b.column.name; });
    for (Column& one : columns_) {
      const auto at = std::find_if(options.columns.begin(), options.columns.end(), [&](const TableColumn& column) {
        std::string name = column.name;
        std::replace(name.begin(), name.end(), '/', '_');
        return name == one.column.name;
      });
      one.number = static_cast<size_t>(at - options.columns.begin());
    }
  }

  void write(const TableFile& from, int64_t row, const std::vector<size_t>& columns) override {
    row_values_.resize(columns.size());
    from.read(row, columns, row_values_);
    for (Column& one : columns_) {
      TableValue& value = row_values_[one.number];
      const std::string name = printable(one.column.name);
      if (value.is_null) throw EnvError(fmt::format("{}: '{}' is null, which HDF5 cannot hold", from.where(row), name));
      if (one.column.kind != ColumnKind::number) {
        if (value.bytes.size() >= kMostObject)
          throw EnvError(fmt::format("{}: '{}' is too large", from.where(row), name));
        one.lengths.push_back(static_cast<uint32_t>(value.bytes.size()));
      } else if (rows_ == 0) {
        one.shape = value.shape;
      } else if (value.shape != one.shape) {
        throw EnvError(fmt::format("{}: '{}' has the shape {}, but the first row has {}", from.where(row), name,
                                   to_string(value.shape), to_string(one.shape)));
      }
      one.values->write(one.is_wide ? numpy_elements(StoredElement::bf16, value.bytes) : value.bytes);
    }
    ++rows_;
  }

  void finish() override {
    write_root();
    for (const Column& one : columns_) {
      file_.write(header_of(one));
      if (one.column.kind == ColumnKind::number)
        copy_values(one);
      else
        write_heap(one);
    }
    file_.finish();
  }

 private:
  struct Column {
    TableColumn column;
    size_t number = 0;  ///< in a row
    bool is_wide = false;
    Shape shape;
    std::unique_ptr<PartFile> values;  ///< it never gets its name
    std::vector<uint32_t> lengths;     ///< lengths of texts and bytes
  };
  static constexpr uint64_t kMostObject = uint64_t{1} << 31, kReference = 16, kObjectHead = 16;

  /// The message of a dataset whose data follow its header at `data`.
  std::string header_with(const Column& one, uint64_t data) const {
    std::string space, type, fill, layout, body;
    append_number(space, uint8_t{1});
    append_number(space, static_cast<uint8_t>(1 + one.shape.size()));
    space += std::string(6, '\0');
    append_number(space, static_cast<uint64_t>(rows_));
    for (const int64_t dim : one.shape) append_number(space, static_cast<uint64_t>(dim));
    type = one.column.kind == ColumnKind::number ? number_text(one.column.element)
                                                 : list_type(one.column.kind != ColumnKind::bytes);
    fill = std::string("\2\1\0\0", 4);  // space is allocated early, and no value is defined
    append_number(layout, uint8_t{3});
    append_number(layout, uint8_t{1});
    append_number(layout, data_bytes(one) > 0 ? data : kNowhere);
    append_number(layout, data_bytes(one));
    append_message(body, 1, space);
    append_message(body, 3, type);
    append_message(body, 5, fill);
    append_message(body, 8, layout);
    return object_header(4, body);
  }
  std::string header_of(const Column& one) const {
    const auto here = static_cast<uint64_t>(file_.bytes());
    return header_with(one, here + header_with(one, 0).size());
  }
  uint64_t data_bytes(const Column& one) const {
    if (one.column.kind != ColumnKind::number) return kReference * one.lengths.size();
    return static_cast<uint64_t>(one.values->bytes());
  }
  static uint64_t padded(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

  /// A collection of the heap has some of the texts: those from `first` to the result, which is not included.
  static size_t collection_end(const Column& one, size_t first, uint64_t& bytes) {
    constexpr uint64_t kEnough = 1 << 16;
    constexpr size_t kMostObjects = 4096;
    bytes = kObjectHead;
    size_t end = first;
    while (end < one.lengths.size() && end - first < kMostObjects && (end == first || bytes < kEnough))
      bytes += kObjectHead + padded(one.lengths[end++]);
    bytes = std::max<uint64_t>(bytes + kObjectHead, 4096);  // an object that is free ends it
    return end;
  }

  uint64_t heap_bytes(const Column& one) const {
    uint64_t all = 0, bytes = 0;
    for (size_t first = 0; first < one.lengths.size(); all += bytes) first = collection_end(one, first, bytes);
    return all;
  }

  /// Writes the superblock, the root group and its symbol table, in which the places of all columns are computed in
  /// advance.
  void write_root() {
    // The sizes of all parts are known, so their places are.
    std::string names(8, '\0');
    std::vector<uint64_t> name_at;
    for (const Column& one : columns_) {
      name_at.push_back(names.size());
      names += one.column.name;
      names.resize(padded(names.size() + 1), '\0');
    }
    const uint64_t kRoot = 96, kHeap = kRoot + 40, kNames = kHeap + 32;
    const uint64_t tree = kNames + names.size(), symbols = tree + 24 + 8 * (2 * kTreeK + 1) + 8 * 2 * kTreeK;
    const uint64_t leaf_k = std::max<uint64_t>(4, (columns_.size() + 1) / 2);
    uint64_t next = symbols + 8 + 40 * 2 * leaf_k;
    std::string text("\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0", 16);
    append_number(text, static_cast<uint16_t>(leaf_k));
    append_number(text, static_cast<uint16_t>(kTreeK));
    append_number(text, uint32_t{0});
    append_number(text, uint64_t{0});
    append_number(text, kNowhere);
    const size_t end_at = text.size();
    append_number(text, uint64_t{0});  // the end of the file, set below
    append_number(text, kNowhere);
    append_symbol(text, 0, kRoot, tree, kHeap);
    std::string message;
    append_number(message, tree);
    append_number(message, kHeap);
    std::string body;
    append_message(body, 17, message);
    text += object_header(1, body);
    text += std::string("HEAP\0\0\0\0", 8);
    append_number(text, uint64_t{names.size()});
    append_number(text, uint64_t{1});  // nothing is free
    append_number(text, kNames);
    text += names;
    text += std::string("TREE\0\0\1\0", 8);
    append_number(text, kNowhere);
    append_number(text, kNowhere);
    append_number(text, uint64_t{0});
    append_number(text, symbols);
    append_number(text, name_at.empty() ? uint64_t{0} : name_at.back());
    text.resize(symbols, '\0');
    text += std::string("SNOD\1\0", 6);
    append_number(text, static_cast<uint16_t>(columns_.size()));
    for (size_t c = 0; c < columns_.size(); ++c) {
      append_symbol(text, name_at[c], next, kNowhere, kNowhere);
      const Column& one = columns_[c];
      next += header_with(one, 0).size() + padded(data_bytes(one)) +
              (one.column.kind == ColumnKind::number ? 0 : heap_bytes(one));
    }
    text.resize(symbols + 8 + 40 * 2 * leaf_k, '\0');
    text.replace(end_at, sizeof next, reinterpret_cast<const char*>(&next), sizeof next);
    file_.write(text);
  }

  /// `tree` and `heap` of a group; kNowhere: it is a dataset.
  static void append_symbol(std::string& text, uint64_t name, uint64_t header, uint64_t tree, uint64_t heap) {
    append_number(text, name);
    append_number(text, header);
    append_number(text, uint32_t{tree == kNowhere ? 0u : 1u});
    append_number(text, uint32_t{0});
    append_number(text, tree == kNowhere ? uint64_t{0} : tree);
    append_number(text, heap == kNowhere ? uint64_t{0} : heap);
  }

  void copy_values(const Column& one) {
    const InputFile values(one.values->part_path());
    std::vector<uint8_t> part;
    constexpr int64_t kAtOnce = int64_t{4} << 20;
    for (int64_t at = 0; at < values.bytes(); at += kAtOnce) {
      part.resize(static_cast<size_t>(std::min(kAtOnce, values.bytes() - at)));
      values.read(at, part);
      file_.write(part);
    }
    const auto bytes = static_cast<uint64_t>(values.bytes());
    file_.write(std::string(padded(bytes) - bytes, '\0'));
  }

  /// References, followed by the collections that they refer to.
  void write_heap(const Column& one) {
    const uint64_t heap = static_cast<uint64_t>(file_.bytes()) + kReference * one.lengths.size();
    std::string references;
    uint64_t place = heap, bytes = 0;
    for (size_t first = 0; first < one.lengths.size(); place += bytes) {
      const size_t end = collection_end(one, first, bytes);
      for (size_t i = first; i < end; ++i) {
        append_number(references, one.lengths[i]);
        append_number(references, place);
        append_number(references, static_cast<uint32_t>(i - first + 1));
      }
      first = end;
    }
    file_.write(references);
    const InputFile values(one.values->part_path());
    int64_t at = 0;
    for (size_t first = 0; first < one.lengths.size();) {
      const size_t end = collection_end(one, first, bytes);
      std::string collection("GCOL\1\0\0\0", 8);
      append_number(collection, bytes);
      for (size_t i = first; i < end; ++i) {
        append_number(collection, static_cast<uint16_t>(i - first + 1));
        append_number(collection, uint16_t{1});
        append_number(collection, uint32_t{0});
        append_number(collection, uint64_t{one.lengths[i]});
        const size_t begin = collection.size();
        collection.resize(begin + padded(one.lengths[i]), '\0');
        values.read(at, {reinterpret_cast<uint8_t*>(collection.data()) + begin, one.lengths[i]});
        at += one.lengths[i];
      }
      append_number(collection, uint64_t{0});  // the object that is free, with its head
      append_number(collection, bytes - (collection.size() - 8));
      collection.resize(bytes, '\0');
      file_.write(collection);
      first = end;
    }
  }

  static constexpr uint64_t kTreeK = 16;
  PartFile file_;
  std::vector<Column> columns_;
  std::vector<TableValue> row_values_;
  int64_t rows_ = 0;
};

}  // namespace

std::unique_ptr<TableWriter> write_hdf5(const TableWriterOptions& options) {
  return std::make_unique<Hdf5Writer>(options);
}

}  // namespace trainctl
