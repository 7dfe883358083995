// Writes the rows of a table as a tar file in the form of webdataset: a member per column, with the row as its stem.
#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/train/data/tables/part_file.h"
#include "engine/train/data/tables/table_writer.h"

namespace trainctl {
namespace {

class TarWriter final : public TableWriter {
 public:
  explicit TarWriter(const TableWriterOptions& options)
      : columns_(options.columns), file_(options.path, options.replace) {
    for (const TableColumn& column : columns_) refuse_nested(column);
  }

  void write(const TableFile& from, int64_t row, const std::vector<size_t>& columns) override {
    values_.resize(columns.size());
    from.read(row, columns, values_);
    for (size_t i = 0; i < columns.size(); ++i) {
      if (values_[i].is_null)
        throw EnvError(fmt::format("{}: '{}' is null", from.where(row), printable(columns_[i].name)));
      add(columns_[i], values_[i]);
    }
    ++rows_;
  }

  void finish() override {
    file_.write(std::string(1024, '\0'));
    file_.finish();
  }

 private:
  /// image and label are those that type: tar reads without `fields`; other columns keep their names.
  void add(const TableColumn& column, const TableValue& value) {
    const bool is_plain = column.name == "image" || column.name == "label";
    const std::string prefix = is_plain || columns_.size() == 1 ? "" : extension_of(column.name) + ".";
    const std::string_view text = value.text();
    if (column.kind != ColumnKind::number) {
      const char* extension = text.starts_with("\xff\xd8\xff")  ? "jpg"
                              : text.starts_with("\x89PNG")     ? "png"
                              : text.starts_with("\x93NUMPY")   ? "npy"
                              : column.kind == ColumnKind::json ? "json"
                                                                : "txt";
      return member(prefix + extension, text);
    }
    const bool is_integer =
        element_type(column.element) != ElementType::f32 && element_type(column.element) != ElementType::bf16;
    const double number = value.shape.empty() ? stored_as_double(column.element, value.bytes.data()) : 0.5;
    const auto whole = static_cast<int64_t>(number);
    if (value.shape.empty() && (is_integer || (column.is_untyped && static_cast<double>(whole) == number)))
      return member(prefix + "cls", std::to_string(whole));
    const std::vector<uint8_t> bytes = numpy_elements(column.element, value.bytes);
    member(prefix + "npy", numpy_head(column.element, value.shape, -1) + std::string(bytes.begin(), bytes.end()));
  }

  /// A name without dots and slashes, which have a meaning in tar shards.
  static std::string extension_of(std::string name) {
    std::replace_if(
        name.begin(), name.end(), [](char c) { return c == '.' || c == '/' || c == '\0'; }, '_');
    return name;
  }

  void member(const std::string& extension, std::string_view bytes) {
    const std::string name = fmt::format("{:09}.{}", rows_, extension);
    std::string header(512, '\0');
    const auto put = [&](size_t at, const std::string& text) { header.replace(at, text.size(), text); };
    constexpr size_t kMostName = 100;
    if (name.size() > kMostName) throw EnvError("the name '" + printable(name) + "' is too long for a tar file");
    constexpr uint64_t kMostOctal = uint64_t{1} << 33;
    if (bytes.size() >= kMostOctal)
      throw EnvError("the value of '" + printable(name) + "' is too large for a tar file");
    put(0, name);
    put(100, "0000644");
    put(108, "0000000");
    put(116, "0000000");
    put(124, fmt::format("{:011o}", bytes.size()));
    put(136, "00000000000");
    put(148, "        ");
    put(156, "0");
    put(257, std::string("ustar\00000", 8));
    uint32_t sum = 0;
    for (const char c : header) sum += static_cast<uint8_t>(c);
    put(148, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
    file_.write(header);
    file_.write(bytes);
    file_.write(std::string((512 - bytes.size() % 512) % 512, '\0'));
  }

  std::vector<TableColumn> columns_;
  PartFile file_;
  std::vector<TableValue> values_;
  int64_t rows_ = 0;
};

}  // namespace

std::unique_ptr<TableWriter> write_tar(const TableWriterOptions& options) {
  return std::make_unique<TarWriter>(options);
}

}  // namespace trainctl
