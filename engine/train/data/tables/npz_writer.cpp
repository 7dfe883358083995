// Writes the columns of a table as an npz file: a zip file with one NumPy array per column.
#include <fmt/format.h>
#include <zip.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/train/data/tables/part_file.h"
#include "engine/train/data/tables/table_writer.h"

namespace trainctl {
namespace {

const char* numpy_type(StoredElement element) {
  switch (element) {
    case StoredElement::boolean:
      return "|b1";
    case StoredElement::u8:
      return "|u1";
    case StoredElement::i8:
      return "|i1";
    case StoredElement::u16:
      return "<u2";
    case StoredElement::i16:
      return "<i2";
    case StoredElement::i32:
      return "<i4";
    case StoredElement::u32:
      return "<u4";
    case StoredElement::i64:
      return "<i8";
    case StoredElement::f16:
      return "<f2";
    case StoredElement::f64:
      return "<f8";
    default:
      return "<f4";
  }
}

}  // namespace

std::string numpy_head(StoredElement element, const Shape& shape, int64_t first) {
  std::string dims;
  if (first >= 0) dims += std::to_string(first) + ",";
  for (const int64_t dim : shape) dims += " " + std::to_string(dim) + ",";
  std::string head =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", numpy_type(element), dims);
  head.append(63 - (head.size() + 10) % 64, ' ');
  head += '\n';
  std::string whole("\x93NUMPY\x01\x00", 8);
  whole += static_cast<char>(head.size() & 0xff);
  whole += static_cast<char>(head.size() >> 8);
  return whole + head;
}

std::vector<uint8_t> numpy_elements(StoredElement element, std::vector<uint8_t> bytes) {
  if (element != StoredElement::bf16) return bytes;
  std::vector<uint8_t> wide;
  for (size_t at = 0; at + 1 < bytes.size(); at += 2) wide.insert(wide.end(), {0, 0, bytes[at], bytes[at + 1]});
  return wide;
}

namespace {

class NpzWriter final : public TableWriter {
 public:
  explicit NpzWriter(const TableWriterOptions& options) : path_(options.path), replace_(options.replace) {
    for (const TableColumn& column : options.columns) {
      if (column.kind != ColumnKind::number)
        throw EnvError(fmt::format("the column '{}' is {}, but npz files take numbers; leave it out with --columns",
                                   printable(column.name), column.type_text()));
      Column& one = columns_.emplace_back();
      one.column = column;
      one.file = std::make_unique<PartFile>(fmt::format("{}.{}", path_, columns_.size()), true);
    }
  }

  void write(const TableFile& from, int64_t row, const std::vector<size_t>& columns) override {
    values_.resize(columns.size());
    from.read(row, columns, values_);
    for (size_t i = 0; i < columns.size(); ++i) {
      Column& one = columns_[i];
      if (values_[i].is_null)
        throw EnvError(fmt::format("{}: '{}' is null", from.where(row), printable(one.column.name)));
      if (rows_ == 0) one.shape = values_[i].shape;
      if (values_[i].shape != one.shape)
        throw EnvError(fmt::format("{}: '{}' has the shape {}, but the first row has {}", from.where(row),
                                   printable(one.column.name), to_string(values_[i].shape), to_string(one.shape)));
      one.file->write(numpy_elements(one.column.element, std::move(values_[i].bytes)));
    }
    ++rows_;
  }

  void finish() override {
    PartFile whole(path_, replace_);
    int code = 0;
    zip_t* zip = zip_open(whole.part_path().c_str(), ZIP_CREATE | ZIP_TRUNCATE, &code);
    if (zip == nullptr) throw EnvError("cannot write " + path_);
    for (const Column& one : columns_) {
      const std::string head = numpy_head(one.column.element, one.shape, rows_);
      if (!add(zip, one, head)) {
        const std::string reason = zip_strerror(zip);
        zip_discard(zip);
        throw EnvError("cannot write " + path_ + ": " + reason);
      }
    }
    if (zip_close(zip) != 0) {
      const std::string reason = zip_strerror(zip);
      zip_discard(zip);
      throw EnvError("cannot write " + path_ + ": " + reason);
    }
    whole.finish();
  }

 private:
  struct Column {
    TableColumn column;
    Shape shape;
    std::unique_ptr<PartFile> file;  ///< the elements; it never gets its name
  };
  /// A member is its head, which memory holds, and the file of its elements.
  struct Member {
    std::string head;
    FILE* data = nullptr;
    size_t at = 0;
    int64_t bytes = 0;
  };

  static zip_int64_t serve(void* state, void* to, zip_uint64_t count, zip_source_cmd_t command) {
    auto* member = static_cast<Member*>(state);
    switch (command) {
      case ZIP_SOURCE_OPEN:
        member->at = 0;
        std::rewind(member->data);
        return 0;
      case ZIP_SOURCE_READ: {
        if (member->at < member->head.size()) {
          const size_t part = std::min<size_t>(count, member->head.size() - member->at);
          std::memcpy(to, member->head.data() + member->at, part);
          member->at += part;
          return static_cast<zip_int64_t>(part);
        }
        return static_cast<zip_int64_t>(std::fread(to, 1, count, member->data));
      }
      case ZIP_SOURCE_STAT: {
        auto* stat = static_cast<zip_stat_t*>(to);
        zip_stat_init(stat);
        stat->size = member->head.size() + static_cast<zip_uint64_t>(member->bytes);
        stat->valid |= ZIP_STAT_SIZE;
        return sizeof *stat;
      }
      case ZIP_SOURCE_FREE:
        std::fclose(member->data);
        delete member;
        return 0;
      case ZIP_SOURCE_ERROR:
        return zip_error_to_data(nullptr, to, count);
      case ZIP_SOURCE_SUPPORTS:
        return zip_source_make_command_bitmap(ZIP_SOURCE_OPEN, ZIP_SOURCE_READ, ZIP_SOURCE_CLOSE, ZIP_SOURCE_STAT,
                                              ZIP_SOURCE_ERROR, ZIP_SOURCE_FREE, -1);
      default:
        return 0;
    }
  }

  static bool add(zip_t* zip, const Column& one, const std::string& head) {
    FILE* data = std::fopen(one.file->part_path().c_str(), "rb");
    if (data == nullptr) return false;
    zip_source_t* source = zip_source_function(zip, serve, new Member{head, data, 0, one.file->bytes()});
    const zip_int64_t index = zip_file_add(zip, (one.column.name + ".npy").c_str(), source, ZIP_FL_ENC_UTF_8);
    if (index < 0) {
      zip_source_free(source);
      return false;
    }
    return zip_set_file_compression(zip, static_cast<zip_uint64_t>(index), ZIP_CM_STORE, 0) == 0;
  }

  std::string path_;
  bool replace_;
  std::vector<Column> columns_;
  std::vector<TableValue> values_;
  int64_t rows_ = 0;
};

}  // namespace

std::unique_ptr<TableWriter> write_npz(const TableWriterOptions& options) {
  return std::make_unique<NpzWriter>(options);
}

}  // namespace trainctl
