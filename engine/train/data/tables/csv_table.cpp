// Text tables as tables (formats.h): a column is numbers if its first value is one, otherwise text.
#include <charconv>
#include <cstring>
#include <memory>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/train/data/sources/csv_index.h"
#include "engine/train/data/sources/csv_text.h"
#include "engine/train/data/tables/formats.h"
#include "engine/train/files/input_file.h"

namespace trainctl {
namespace {

bool parse_csv_number(std::string_view text, double& value) {
  const size_t first = std::min(text.find_first_not_of(" \t"), text.size());
  text = text.substr(first, text.find_last_not_of(" \t") + 1 - first);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return !text.empty() && end == text.data() + text.size() && error == std::errc();
}

class CsvTable final : public TableFile {
 public:
  explicit CsvTable(const std::string& path)
      : file_(path),
        delimiter_(csv_delimiter(path)),
        index_(file_, delimiter_, true, [&](std::string_view row, int64_t line) { visit(row, line); }) {}

  int64_t size() const override { return index_.rows(); }
  const std::vector<TableColumn>& columns() const override { return columns_; }
  std::string where(int64_t row) const override { return file_.path() + ":" + std::to_string(index_.line(file_, row)); }
  int64_t memory_bytes() const override { return index_.memory_bytes(); }

  void read(int64_t row, std::span<const size_t> columns, std::span<TableValue> out) const override {
    std::string text = index_.read(file_, row);
    text.resize(row_bytes(text, delimiter_, true).value_or(text.size()));
    std::vector<std::string_view> values;
    std::string wrong = split_row(text, delimiter_, values);
    if (wrong.empty() && values.size() != columns_.size())
      wrong = "expected " + std::to_string(columns_.size()) + " values, found " + std::to_string(values.size());
    if (!wrong.empty()) throw EnvError(where(row) + ": " + wrong);
    for (size_t i = 0; i < columns.size(); ++i) {
      const std::string_view value = values[columns[i]];
      out[i].shape.clear();
      out[i].set_bytes(value);
      if (columns_[columns[i]].kind != ColumnKind::number) continue;
      double number = 0;
      if (!parse_csv_number(value, number))
        throw EnvError(where(row) + ": column '" + printable(columns_[columns[i]].name) +
                       "': expected a number, found '" + printable(shortened(value)) + "'");
      out[i].bytes.resize(sizeof number);
      std::memcpy(out[i].bytes.data(), &number, sizeof number);
    }
  }

 private:
  /// The first row names the columns; the second one determines their types.
  void visit(std::string_view row, int64_t line) {
    if (++visited_ > 2) return;
    std::string text(row);
    std::vector<std::string_view> values;
    if (const std::string wrong = split_row(text, delimiter_, values); !wrong.empty())
      throw EnvError(file_.path() + ":" + std::to_string(line) + ": " + wrong);
    double ignored = 0;
    for (size_t c = 0; c < values.size(); ++c) {
      if (visited_ == 1) columns_.push_back({std::string(values[c]), ColumnKind::text});
      if (visited_ == 2 && c < columns_.size() && parse_csv_number(values[c], ignored))
        columns_[c] = {columns_[c].name, ColumnKind::number, StoredElement::f64, {}, true};
    }
  }

  InputFile file_;
  char delimiter_;
  int visited_ = 0;
  std::vector<TableColumn> columns_;
  CsvIndex index_;
};

}  // namespace

char csv_delimiter(const std::string& path) {
  if (path.ends_with(".tsv")) return '\t';
  constexpr int64_t kMostBytes = int64_t{1} << 20;
  const InputFile file(path);
  std::string text(static_cast<size_t>(std::min(file.bytes(), kMostBytes)), '\0');
  file.read(0, {reinterpret_cast<uint8_t*>(text.data()), text.size()});
  char best = ',';
  size_t most = 1;
  for (const char delimiter : {',', ';', '\t', '|'}) {
    std::string_view rest = text;
    size_t columns[2] = {0, 0};
    for (size_t& count : columns) {
      std::string row;
      do {
        const size_t bytes = row_bytes(rest, delimiter, true).value_or(rest.size());
        row = rest.substr(0, bytes);
        rest.remove_prefix(bytes);
      } while (is_blank_row(row) && !rest.empty());
      std::vector<std::string_view> values;
      if (split_row(row, delimiter, values).empty() && !is_blank_row(row)) count = values.size();
    }
    const bool alike = columns[1] == 0 || columns[0] == columns[1];
    if (!alike || columns[0] <= most) continue;
    best = delimiter;
    most = columns[0];
  }
  return best;
}

std::unique_ptr<TableFile> open_csv_table(const std::string& path) { return std::make_unique<CsvTable>(path); }

}  // namespace trainctl
