// Writes Parquet and Arrow files: batches of rows in Arrow's C data interface, which the library takes over.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/train/data/tables/arrow_file.h"
#include "engine/train/data/tables/part_file.h"
#include "engine/train/data/tables/table_writer.h"

namespace trainctl {
namespace {

/// A field of a schema that owns its texts and children.
struct OwnedSchema {
  std::string format, name;
  std::vector<ArrowSchema> children;
  std::vector<ArrowSchema*> pointers;

  static ArrowSchema make(std::string format, std::string name, std::vector<ArrowSchema> children = {}) {
    auto* owned = new OwnedSchema{std::move(format), std::move(name), std::move(children), {}};
    for (ArrowSchema& child : owned->children) owned->pointers.push_back(&child);
    return {owned->format.c_str(),
            owned->name.c_str(),
            nullptr,
            ARROW_FLAG_NULLABLE,
            static_cast<int64_t>(owned->pointers.size()),
            owned->pointers.data(),
            nullptr,
            release,
            owned};
  }
  static void release(ArrowSchema* schema) {
    auto* owned = static_cast<OwnedSchema*>(schema->private_data);
    for (ArrowSchema& child : owned->children)
      if (child.release != nullptr) child.release(&child);
    schema->release = nullptr;
    delete owned;
  }
};

/// An array that owns its buffers and children.
struct OwnedArray {
  std::vector<std::vector<uint8_t>> data;
  std::vector<const void*> buffers;
  std::vector<ArrowArray> children;
  std::vector<ArrowArray*> pointers;

  /// `data`: the buffers; an empty one is null.
  static ArrowArray make(int64_t length, int64_t nulls, std::vector<std::vector<uint8_t>> data,
                         std::vector<ArrowArray> children = {}) {
    auto* owned = new OwnedArray{std::move(data), {}, std::move(children), {}};
    for (const auto& buffer : owned->data) owned->buffers.push_back(buffer.empty() ? nullptr : buffer.data());
    for (ArrowArray& child : owned->children) owned->pointers.push_back(&child);
    return {length,
            nulls,
            0,
            static_cast<int64_t>(owned->buffers.size()),
            static_cast<int64_t>(owned->pointers.size()),
            owned->buffers.data(),
            owned->pointers.data(),
            nullptr,
            release,
            owned};
  }
  static void release(ArrowArray* array) {
    auto* owned = static_cast<OwnedArray*>(array->private_data);
    for (ArrowArray& child : owned->children)
      if (child.release != nullptr) child.release(&child);
    array->release = nullptr;
    delete owned;
  }
};

const char* arrow_format(StoredElement element) {
  switch (element) {
    case StoredElement::boolean:
      return "b";
    case StoredElement::u8:
      return "C";
    case StoredElement::i8:
      return "c";
    case StoredElement::u16:
      return "S";
    case StoredElement::i16:
      return "s";
    case StoredElement::i32:
      return "i";
    case StoredElement::u32:
      return "I";
    case StoredElement::i64:
      return "l";
    case StoredElement::f16:
      return "e";
    case StoredElement::f64:
      return "g";
    default:
      return "f";  // bf16 is widened
  }
}

void append_offset(std::vector<uint8_t>& offsets, int64_t value) {
  offsets.insert(offsets.end(), reinterpret_cast<const uint8_t*>(&value),
                 reinterpret_cast<const uint8_t*>(&value) + sizeof value);
}

/// The rows of one column since the last batch.
class ColumnBuilder {
 public:
  explicit ColumnBuilder(TableColumn column) : column_(std::move(column)), dims_(column_.shape.size()) {
    refuse_nested(column_);
    clear();
  }

  ArrowSchema schema() const {
    if (column_.kind != ColumnKind::number)
      return OwnedSchema::make(column_.kind == ColumnKind::bytes ? "Z" : "U", column_.name);
    ArrowSchema at = OwnedSchema::make(arrow_format(column_.element), dims_ == 0 ? column_.name : "item");
    for (size_t dim = dims_; dim-- > 0;)
      at = OwnedSchema::make(column_.shape[dim] >= 0 ? fmt::format("+w:{}", column_.shape[dim]) : "+L",
                             dim == 0 ? column_.name : "item", {at});
    return at;
  }

  void add(const TableValue& value, const std::string& where) {
    if (rows_ % 8 == 0) valid_.push_back(0);
    if (!value.is_null) valid_.back() |= static_cast<uint8_t>(1u << (rows_ % 8));
    nulls_ += value.is_null ? 1 : 0;
    ++rows_;
    if (column_.kind != ColumnKind::number) {
      if (!value.is_null) values_.insert(values_.end(), value.bytes.begin(), value.bytes.end());
      append_offset(offsets_[0], static_cast<int64_t>(values_.size()));
      return;
    }
    add_numbers(value, where);
  }

  /// All rows so far.
  ArrowArray take() {
    ArrowArray result =
        column_.kind == ColumnKind::number
            ? take_numbers()
            : OwnedArray::make(rows_, nulls_, {taken_validity(), std::move(offsets_[0]), std::move(values_)});
    clear();
    return result;
  }

 private:
  void clear() {
    rows_ = nulls_ = elements_ = 0;
    valid_.clear();
    values_.clear();
    offsets_.assign(std::max<size_t>(dims_, 1), {});
    counts_.assign(std::max<size_t>(dims_, 1), 0);
    for (auto& offsets : offsets_) append_offset(offsets, 0);
  }

  std::vector<uint8_t> taken_validity() { return nulls_ > 0 ? std::move(valid_) : std::vector<uint8_t>(); }

  void add_numbers(const TableValue& value, const std::string& where) {
    Shape shape = value.shape;
    if (value.is_null) {
      shape = column_.shape;
      for (int64_t& dim : shape) dim = std::max<int64_t>(dim, 0);
    }
    const bool fits = shape.size() == dims_ && std::equal(shape.begin(), shape.end(), column_.shape.begin(),
                                                          [](int64_t a, int64_t b) { return b < 0 || a == b; });
    if (!fits)
      throw EnvError(fmt::format("{}: '{}' has the shape {}, but the column is {}", where, printable(column_.name),
                                 to_string(shape), column_.type_text()));
    int64_t lists = 1;
    for (size_t dim = 0; dim < dims_; ++dim) {
      if (column_.shape[dim] < 0)
        for (int64_t i = 0; i < lists; ++i) append_offset(offsets_[dim], counts_[dim] += shape[dim]);
      lists *= shape[dim];
    }
    const auto bytes = static_cast<size_t>(lists * byte_size(column_.element));
    std::vector<uint8_t> zeros;
    if (value.is_null) zeros.resize(bytes);
    append_elements(value.is_null ? zeros : value.bytes);
    elements_ += lists;
  }

  void append_elements(const std::vector<uint8_t>& bytes) {
    if (column_.element == StoredElement::bf16) {
      for (size_t at = 0; at + 1 < bytes.size(); at += 2)
        values_.insert(values_.end(), {0, 0, bytes[at], bytes[at + 1]});
    } else {
      values_.insert(values_.end(), bytes.begin(), bytes.end());
    }
  }

  ArrowArray take_numbers() {
    if (column_.element == StoredElement::boolean) {  // a bit per value
      std::vector<uint8_t> bits((values_.size() + 7) / 8);
      for (size_t i = 0; i < values_.size(); ++i)
        if (values_[i] != 0) bits[i / 8] |= static_cast<uint8_t>(1u << (i % 8));
      values_ = std::move(bits);
    }
    std::vector<int64_t> lengths{rows_};  // the number of lists in each dim, and of elements
    for (size_t dim = 0; dim < dims_; ++dim)
      lengths.push_back(column_.shape[dim] >= 0 ? lengths.back() * column_.shape[dim] : counts_[dim]);
    ArrowArray at = OwnedArray::make(elements_, dims_ == 0 ? nulls_ : 0,
                                     {dims_ == 0 ? taken_validity() : std::vector<uint8_t>(), std::move(values_)});
    for (size_t dim = dims_; dim-- > 0;) {
      std::vector<std::vector<uint8_t>> buffers{dim == 0 ? taken_validity() : std::vector<uint8_t>()};
      if (column_.shape[dim] < 0) buffers.push_back(std::move(offsets_[dim]));
      at = OwnedArray::make(lengths[dim], dim == 0 ? nulls_ : 0, std::move(buffers), {at});
    }
    return at;
  }

  TableColumn column_;
  size_t dims_;
  int64_t rows_ = 0, nulls_ = 0, elements_ = 0;
  std::vector<uint8_t> valid_, values_;
  std::vector<std::vector<uint8_t>> offsets_;  ///< i64 offsets of texts, or of the lists of each dim
  std::vector<int64_t> counts_;                ///< elements of the lists of each dim so far
};

class ArrowFileWriter final : public TableWriter {
 public:
  ArrowFileWriter(const TableWriterOptions& options, TrainctlArrowForm form)
      : library_(arrow_library()), file_(options.path, options.replace), group_rows_(options.group_rows) {
    std::vector<ArrowSchema> fields;
    for (const TableColumn& column : options.columns) builders_.emplace_back(column);
    for (const ColumnBuilder& builder : builders_) fields.push_back(builder.schema());
    ArrowSchema schema = OwnedSchema::make("+s", "", std::move(fields));
    writer_ = library_.create(file_.part_path().c_str(), form, &schema, receiver());
    if (writer_ == nullptr) fail();
  }
  ~ArrowFileWriter() override {
    if (writer_ != nullptr) library_.finish(writer_, receiver());
  }
  ArrowFileWriter(const ArrowFileWriter&) = delete;
  ArrowFileWriter& operator=(const ArrowFileWriter&) = delete;

  void write(const TableFile& from, int64_t row, const std::vector<size_t>& columns) override {
    values_.resize(columns.size());
    from.read(row, columns, values_);
    for (size_t i = 0; i < columns.size(); ++i) builders_[i].add(values_[i], from.where(row));
    if (++rows_ == group_rows_) flush();
  }

  void finish() override {
    if (rows_ > 0) flush();
    if (library_.finish(std::exchange(writer_, nullptr), receiver()) != 0) fail();
    file_.finish();
  }

 private:
  TrainctlArrowError receiver() { return {error_.data(), static_cast<int64_t>(error_.size())}; }
  [[noreturn]] void fail() const {
    throw EnvError("cannot write " + file_.part_path() + ": " + printable(error_.data()));
  }

  void flush() {
    std::vector<ArrowArray> arrays;
    for (ColumnBuilder& builder : builders_) arrays.push_back(builder.take());
    ArrowArray batch = OwnedArray::make(std::exchange(rows_, 0), 0, {{}}, std::move(arrays));
    if (library_.write(writer_, &batch, receiver()) != 0) fail();
  }

  const TrainctlArrow& library_;
  PartFile file_;
  int64_t group_rows_, rows_ = 0;
  std::vector<ColumnBuilder> builders_;
  std::vector<TableValue> values_;
  void* writer_ = nullptr;
  std::array<char, 2048> error_{};
};

/// state.json, dataset_info.json and one Arrow file, as datasets.load_from_disk reads them.
class HuggingFaceWriter final : public TableWriter {
 public:
  explicit HuggingFaceWriter(const TableWriterOptions& options) {
    make_folder_of(options.path);
    TableWriterOptions rows = options;
    rows.path = (std::filesystem::path(options.path).parent_path() / kFileName).string();
    rows_ = std::make_unique<ArrowFileWriter>(rows, kArrowIpcStream);
    info_ = std::make_unique<PartFile>(
        (std::filesystem::path(options.path).parent_path() / "dataset_info.json").string(), options.replace);
    state_ = std::make_unique<PartFile>(options.path, options.replace);
  }

  void write(const TableFile& from, int64_t row, const std::vector<size_t>& columns) override {
    rows_->write(from, row, columns);
  }

  void finish() override {
    nlohmann::ordered_json file = {{"filename", kFileName}};
    const nlohmann::ordered_json state = {{"_data_files", nlohmann::ordered_json::array({std::move(file)})},
                                          {"_fingerprint", "trainctl"},
                                          {"_format_columns", nullptr},
                                          {"_format_kwargs", nlohmann::ordered_json::object()},
                                          {"_format_type", nullptr},
                                          {"_output_all_columns", false},
                                          {"_split", nullptr}};
    rows_->finish();
    info_->write("{}");
    info_->finish();
    state_->write(state.dump(2));
    state_->finish();
  }

 private:
  static constexpr const char* kFileName = "data-00000-of-00001.arrow";
  std::unique_ptr<ArrowFileWriter> rows_;
  std::unique_ptr<PartFile> info_, state_;
};

}  // namespace

std::unique_ptr<TableWriter> write_arrow_file(const TableWriterOptions& options) {
  return std::make_unique<ArrowFileWriter>(options, options.path.ends_with(".parquet") ? kArrowParquet : kArrowIpcFile);
}
std::unique_ptr<TableWriter> write_hugging_face(const TableWriterOptions& options) {
  return std::make_unique<HuggingFaceWriter>(options);
}

}  // namespace trainctl
