// `trainctl data convert`: converts the rows of files to a file of another format.
#include "engine/train/data/convert_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/train/data/sources/arrays.h"
#include "engine/train/data/sources/file_list.h"
#include "engine/train/data/sources/image_folder.h"
#include "engine/train/data/sources/names_hint.h"
#include "engine/train/data/sources/tar.h"
#include "engine/train/data/tables/formats.h"
#include "engine/train/data/tables/plain_text.h"
#include "engine/train/data/tables/table_writer.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

StoredElement stored_as(ElementType type) {
  switch (type) {
    case ElementType::u8:
      return StoredElement::u8;
    case ElementType::u16:
      return StoredElement::u16;
    case ElementType::i32:
      return StoredElement::i32;
    case ElementType::i64:
      return StoredElement::i64;
    case ElementType::bf16:
      return StoredElement::bf16;
    default:
      return StoredElement::f32;
  }
}

class SourceTable final : public TableFile {
 public:
  explicit SourceTable(std::shared_ptr<const Source> source) : source_(std::move(source)) {
    for (const SourceField& field : source_->fields()) {
      TableColumn column{field.name, ColumnKind::bytes};
      const bool is_any = std::find(field.shape.begin(), field.shape.end(), -1) != field.shape.end();
      if (field.encoding == Encoding::array && !is_any)
        column = {field.name, ColumnKind::number, stored_as(field.type), field.shape};
      if (field.name == "label") column.classes = source_->class_names();
      columns_.push_back(std::move(column));
    }
    if (size() == 0) return;
    std::vector<FieldBytes> first(columns_.size());
    source_->read(0, std::vector<bool>(columns_.size(), true), first);
    for (size_t c = 0; c < columns_.size(); ++c)
      if (columns_[c].kind == ColumnKind::bytes &&
          is_plain_text({reinterpret_cast<const char*>(first[c].data()), first[c].size()}))
        columns_[c].kind = ColumnKind::text;
  }

  int64_t size() const override { return source_->size(); }
  const std::vector<TableColumn>& columns() const override { return columns_; }
  std::string where(int64_t row) const override { return source_->where(row); }
  int64_t memory_bytes() const override { return source_->memory_bytes(); }

  void read(int64_t row, std::span<const size_t> columns, std::span<TableValue> out) const override {
    std::vector<FieldBytes> bytes(columns_.size());
    std::vector<bool> wanted(columns_.size());
    for (const size_t column : columns) wanted[column] = true;
    source_->read(row, wanted, bytes);
    for (size_t i = 0; i < columns.size(); ++i) {
      const FieldBytes& from = bytes[columns[i]];
      out[i].set_bytes({reinterpret_cast<const char*>(from.data()), from.size()});
      out[i].shape = columns_[columns[i]].shape;
    }
  }

 private:
  std::shared_ptr<const Source> source_;
  std::vector<TableColumn> columns_;
};

/// Opens a file that open_table_file() does not read: a text table, a tar shard, or an array file, whose arrays all
/// become columns under their own names.
std::unique_ptr<TableFile> open_other(const std::string& path) {
  if (path.ends_with(".csv") || path.ends_with(".tsv")) return open_csv_table(path);
  if (path.ends_with(".tar")) return table_of_source(open_tar({.paths = {path}, .label_type = ElementType::i64}));
  if (path.ends_with(".npz")) return table_of_source(open_npz({{path}, {}}));
  if (path.ends_with(".safetensors")) return table_of_source(open_safetensors({{path}, {}}));
  if (path.ends_with(".npy")) return table_of_source(open_npy({{{"data", {path}}}}));
  throw SpecError({}, "FILE", "'" + path + "' has no format that is read as a table",
                  "*.jsonl, *.parquet, *.arrow, *.feather, *.tfrecord, *.mdb, *.h5, *.csv, *.tsv, *.tar, *.npz, *.npy, "
                  "*.safetensors, and folders of MDS, Hugging Face data sets or images");
}

std::vector<size_t> chosen_columns(const TableFile& table, const std::vector<TableColumn>& columns) {
  std::vector<size_t> chosen;
  for (const TableColumn& column : columns) {
    const int found = table.find(column.name);
    const bool is_same = found >= 0 && table.columns()[static_cast<size_t>(found)].kind == column.kind &&
                         table.columns()[static_cast<size_t>(found)].element == column.element;
    if (!is_same)
      throw EnvError(fmt::format("{}: has no column '{}' of the type {}, which the first file has",
                                 table.size() > 0 ? table.where(0) : "a file", printable(column.name),
                                 column.type_text()));
    chosen.push_back(static_cast<size_t>(found));
  }
  return chosen;
}

}  // namespace

std::unique_ptr<TableFile> table_of_source(std::shared_ptr<const Source> source) {
  return std::make_unique<SourceTable>(std::move(source));
}

std::vector<std::unique_ptr<TableFile>> open_tables(const std::vector<std::string>& patterns) {
  std::vector<std::unique_ptr<TableFile>> tables;
  for (const std::string& pattern : patterns) {
    std::error_code ignored;
    if (fs::is_directory(pattern, ignored) && table_files_of_folder(pattern).empty()) {
      tables.push_back(table_of_source(open_image_folder({{pattern}, {}})));
      continue;
    }
    for (const std::string& file : list_table_files({pattern}, "FILE"))
      tables.push_back(is_table_file(file) ? open_table_file(file) : open_other(file));
  }
  return tables;
}

ConvertResult convert_tables(const std::vector<std::unique_ptr<TableFile>>& tables, const ConvertOptions& options) {
  check(!tables.empty(), "there are tables to convert");
  ConvertResult result;
  const TableFile& first = *tables.front();
  std::vector<std::string> names;
  for (const TableColumn& column : first.columns()) names.push_back(column.name);
  for (const std::string& name : options.columns.empty() ? names : options.columns) {
    const int found = first.find(name);
    if (found < 0)
      throw SpecError({}, "--columns", "the input has no column '" + printable(shortened(name)) + "'",
                      names_hint("columns", names, name));
    result.columns.push_back(first.columns()[static_cast<size_t>(found)]);
  }
  const std::unique_ptr<TableWriter> writer = make_table_writer({options.output, result.columns, options.replace});
  for (const std::unique_ptr<TableFile>& table : tables) {
    const std::vector<size_t> columns = chosen_columns(*table, result.columns);
    table->choose(columns);
    for (int64_t row = 0; row < table->size(); ++row) {
      if (options.most_rows > 0 && result.rows == options.most_rows) break;
      writer->write(*table, row, columns);
      ++result.rows;
    }
  }
  writer->finish();
  return result;
}

}  // namespace trainctl
