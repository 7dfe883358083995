// Implements `trainctl data convert`, and reads tables that are arguments of `trainctl data` info, check and show.
#include "cli/commands/data_files.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>

#include "cli/commands/commands.h"
#include "cli/text/wrap.h"
#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/base/url.h"
#include "engine/train/data/convert_table.h"
#include "engine/train/data/tables/table_writer.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

std::string column_line(const TableColumn& column) {
  std::string line = fmt::format("  {}: {}", printable(column.name), column.type_text());
  constexpr size_t kMostClasses = 12;
  if (column.classes.empty()) return line;
  std::vector<std::string> names(
      column.classes.begin(),
      column.classes.begin() + static_cast<int64_t>(std::min(column.classes.size(), kMostClasses)));
  return line + fmt::format("; {} classes: {}{}", column.classes.size(), printable(join(names)),
                            column.classes.size() > kMostClasses ? ", …" : "");
}

int64_t rows_of(const std::vector<std::unique_ptr<TableFile>>& tables) {
  int64_t rows = 0;
  for (const auto& table : tables) rows += table->size();
  return rows;
}

std::string value_text(const TableColumn& column, const TableValue& value) {
  if (value.is_null) return "null";
  if (column.kind == ColumnKind::bytes) {
    const std::string_view text = value.text();
    const char* what = text.starts_with("\xff\xd8\xff") ? "JPEG" : text.starts_with("\x89PNG") ? "PNG" : "bytes";
    return fmt::format("{}, {}", what, format_bytes(static_cast<int64_t>(text.size())));
  }
  if (column.kind != ColumnKind::number) return "'" + printable(shortened(value.text())) + "'";
  constexpr size_t kMostNumbers = 8;
  const auto width = static_cast<size_t>(byte_size(column.element));
  std::vector<std::string> numbers;
  for (size_t at = 0; at + width <= value.bytes.size() && numbers.size() < kMostNumbers; at += width)
    numbers.push_back(fmt::format("{:.6g}", stored_as_double(column.element, value.bytes.data() + at)));
  const bool has_more = value.bytes.size() > kMostNumbers * width;
  return value.shape.empty() ? join(numbers) : "[" + join(numbers) + (has_more ? ", …]" : "]");
}

struct ConvertArguments {
  std::vector<std::string> files;
  ConvertOptions options;
};

int convert_files(const ConvertArguments& arguments) {
  const std::vector<std::unique_ptr<TableFile>> tables = open_tables(arguments.files);
  const ConvertResult result = convert_tables(tables, arguments.options);
  std::cout << fmt::format("{}: {} row{}\n", printable(arguments.options.output), with_commas(result.rows),
                           result.rows == 1 ? "" : "s");
  for (const TableColumn& column : result.columns) std::cout << column_line(column) << "\n";
  return kExitDone;
}

}  // namespace

bool is_table_path(const std::string& path) {
  std::error_code ignored;
  const bool is_folder = is_url(path) ? fs::path(shown_url(path)).extension().empty() : fs::is_directory(path, ignored);
  if (is_folder) return !table_files_of_folder(path).empty();
  constexpr const char* kOtherSuffixes[] = {".csv", ".tsv", ".tar", ".npz", ".npy", ".safetensors"};
  return is_table_file(path) || std::any_of(std::begin(kOtherSuffixes), std::end(kOtherSuffixes),
                                            [&](const char* suffix) { return path.ends_with(suffix); });
}

std::string describe_table(const std::string& path) {
  const std::vector<std::unique_ptr<TableFile>> tables = open_tables({path});
  std::string text = fmt::format("{}: {} rows", printable(path), with_commas(rows_of(tables)));
  if (tables.size() > 1) text += fmt::format(" in {} files", tables.size());
  text += "\n";
  for (const TableColumn& column : tables.front()->columns()) text += column_line(column) + "\n";
  return text;
}

bool check_table(const std::string& path) {
  const std::vector<std::unique_ptr<TableFile>> tables = open_tables({path});
  int64_t broken = 0;
  std::vector<std::string> first;
  std::vector<int64_t> nulls(tables.front()->columns().size());
  for (const auto& table : tables) {
    std::vector<size_t> columns;
    for (size_t c = 0; c < table->columns().size(); ++c) columns.push_back(c);
    std::vector<TableValue> values(columns.size());
    nulls.resize(std::max(nulls.size(), columns.size()));
    for (int64_t row = 0; row < table->size(); ++row) {
      try {
        table->read(row, columns, values);
        for (size_t c = 0; c < columns.size(); ++c) nulls[c] += values[c].is_null ? 1 : 0;
      } catch (const EnvError& error) {
        constexpr size_t kMostListed = 100;
        ++broken;
        if (first.size() < kMostListed) first.emplace_back(error.what());
      }
    }
  }
  std::cout << fmt::format("{} rows, {} broken\n", with_commas(rows_of(tables)), with_commas(broken));
  const std::vector<TableColumn>& columns = tables.front()->columns();
  for (size_t c = 0; c < columns.size(); ++c)
    std::cout << column_line(columns[c]) << (nulls[c] > 0 ? fmt::format("; {} null", with_commas(nulls[c])) : "")
              << "\n";
  for (const std::string& error : first) std::cout << "  broken: " << printable(error) << "\n";
  return broken == 0;
}

void show_table(const std::string& path, int64_t count) {
  const std::vector<std::unique_ptr<TableFile>> tables = open_tables({path});
  for (const auto& table : tables) {
    std::vector<size_t> columns;
    for (size_t c = 0; c < table->columns().size(); ++c) columns.push_back(c);
    std::vector<TableValue> values(columns.size());
    for (int64_t row = 0; row < table->size() && count > 0; ++row, --count) {
      table->read(row, columns, values);
      std::cout << printable(table->where(row)) << "\n";
      for (const size_t c : columns)
        std::cout << fmt::format("  {}: {}\n", printable(table->columns()[c].name),
                                 value_text(table->columns()[c], values[c]));
    }
  }
}

void add_data_convert_command(CLI::App& data, Action& chosen) {
  auto arguments = std::make_shared<ConvertArguments>();
  auto* convert = data.add_subcommand("convert", "Write the rows of files in another format");
  convert->add_option("FILE", arguments->files, "Files, globs and folders, in order")->required();
  convert->add_option("-o,--output", arguments->options.output, "File to write; its name determines the format")
      ->required();
  convert->add_option("--columns", arguments->options.columns, "Columns to write, a,b; default: all")->delimiter(',');
  convert->add_option("-n,--rows", arguments->options.most_rows, "Write only the first rows")
      ->check(CLI::PositiveNumber);
  convert->add_flag("--force", arguments->options.replace, "Replace the output file if it exists");
  convert->footer(
      "Reads *.jsonl, *.parquet, *.arrow, *.feather, *.tfrecord, *.mdb, *.h5, *.csv, *.tsv, *.tar, *.npz, *.npy,\n"
      "*.safetensors, *.idx, and folders of MDS, LMDB, Hugging Face data sets or images. Writes\n" +
      fit_lines(table_writer_formats(), 110) +
      "npz files need numbers of one shape per column; bin and idx files need one column of tokens. FOLDER/index.json "
      "is written "
      "as\n"
      "MDS, FOLDER/data.mdb as LMDB, and FOLDER/state.json as a Hugging Face data set. Files are written "
      "atomically.\n\n"
      "Examples:\n"
      "  trainctl data convert 'data/*.parquet' -o data.jsonl.zst --columns text\n"
      "  trainctl data convert photos -o photos.tar\n"
      "  trainctl data convert photos.tar -o shards/index.json\n"
      "  trainctl data convert tokenized.parquet -o tokens.bin --columns input_ids");
  convert->callback([&chosen, arguments] { chosen = [arguments] { return convert_files(*arguments); }; });
}

}  // namespace trainctl
