// Tables of text (RFC 4180): a row is a sample.
#include "engine/train/data/sources/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/train/data/sources/csv_index.h"
#include "engine/train/data/sources/csv_text.h"
#include "engine/train/data/sources/field_bytes.h"
#include "engine/train/data/sources/file_list.h"
#include "engine/train/data/sources/names_hint.h"
#include "engine/train/data/sources/open_files.h"

namespace trainctl {
namespace {

constexpr size_t kMostWords = 1 << 16;

std::string_view without_blanks(std::string_view text) {
  const size_t first = std::min(text.find_first_not_of(" \t"), text.size());
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

/// Parses the whole text as a number of type T.
template <class T>
bool parse_number(std::string_view text, T& value) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size() || text.empty()) return false;
  if constexpr (std::is_same_v<T, float>) {
    if (error != std::errc::result_out_of_range) return error == std::errc();
    double wide = 0;  // too large for f32 is an error; too small becomes 0 or the least number
    if (std::from_chars(text.data(), text.data() + text.size(), wide).ec != std::errc()) return false;
    value = static_cast<float>(wide);
    return std::isfinite(value);
  } else {
    return error == std::errc();
  }
}

/// Parses an integer. Also accepts 3.0, because pandas writes a column of integers with gaps in this way.
template <class T>
bool parse_value(std::string_view text, T& value) {
  if (parse_number(text, value)) return true;
  if constexpr (std::is_integral_v<T>) {
    const size_t point = text.find('.');
    return point != std::string_view::npos && point + 1 < text.size() &&
           text.find_first_not_of('0', point + 1) == std::string_view::npos &&
           parse_number(text.substr(0, point), value);
  }
  return false;
}

/// A field, and the columns from which it is read.
struct Column {
  size_t place = 0;  ///< in a row, from 0
  std::string name;
};
struct Columns {
  CsvField spec;
  std::vector<Column> columns;
  std::vector<std::string> words;  ///< sorted by name, from spec.words
  std::vector<int64_t> numbers;    ///< number of each word
};

struct Table {
  CsvIndex index;
  int64_t first = 0;  ///< sample of the set
};

class CsvSet : public Source {
 public:
  explicit CsvSet(const CsvOptions& options)
      : delimiter_(options.delimiter), files_(list_files(options.paths, "dataset.path")) {
    for (const CsvField& field : options.fields) columns_.push_back({field, {}, {}, {}});
    std::vector<std::set<std::string, std::less<>>> words(columns_.size());
    for (size_t f = 0; f < files_.size(); ++f) {
      const auto file = files_.get(f);
      bool is_first = true;
      std::vector<std::string_view> values;
      std::string text;
      CsvIndex index(*file, delimiter_, options.header, [&](std::string_view row, int64_t line) {
        if (!is_first && !has_unknown_words()) return;
        text = row;
        if (const std::string wrong = split_row(text, delimiter_, values); !wrong.empty())
          fail_line(file->path(), line, wrong);
        if (is_first) define_columns(f, values, options.header);
        if (!is_first || !options.header) add_words(file->path(), line, values, words);
        is_first = false;
      });
      tables_.push_back({std::move(index), size_});
      size_ += tables_.back().index.rows();
    }
    if (size_ == 0)
      throw SpecError({}, "dataset.path", files_.path(0) + ": contains no rows",
                      "a table needs one row per "
                      "sample");
    for (size_t c = 0; c < columns_.size(); ++c) number_words(columns_[c], words[c]);
    define_fields();
  }

  int64_t size() const override { return size_; }
  const std::vector<SourceField>& fields() const override { return fields_; }
  const std::vector<std::string>& class_names() const override { return class_names_; }

  void read(int64_t sample, const std::vector<bool>& wanted, std::span<FieldBytes> out) const override {
    const Table& table = table_of(sample);
    const auto file = files_.get(static_cast<size_t>(&table - tables_.data()));
    std::string row = table.index.read(*file, sample - table.first);
    row.resize(row_bytes(row, delimiter_, true).value_or(row.size()));
    std::vector<std::string_view> values;
    std::string wrong = split_row(row, delimiter_, values);
    if (wrong.empty()) wrong = wrong_count(values.size());
    for (size_t c = 0; wrong.empty() && c < columns_.size(); ++c)
      if (wanted[c]) wrong = convert(columns_[c], values, out[c]);
    if (!wrong.empty()) throw EnvError(where(sample) + ": " + wrong);
  }

  std::string where(int64_t sample) const override {
    const Table& table = table_of(sample);
    const auto file = files_.get(static_cast<size_t>(&table - tables_.data()));
    return fmt::format("{}:{}", file->path(), table.index.line(*file, sample - table.first));
  }

  int64_t memory_bytes() const override {
    int64_t bytes = files_.memory_bytes();
    for (const Table& table : tables_) bytes += table.index.memory_bytes();
    for (const Columns& field : columns_)
      for (const std::string& word : field.words) bytes += static_cast<int64_t>(sizeof(word) + word.capacity());
    return bytes;
  }

 private:
  [[noreturn]] static void fail_line(const std::string& file, int64_t line, const std::string& what) {
    throw EnvError(fmt::format("{}:{}: {}", file, line, what));
  }
  const Table& table_of(int64_t sample) const {
    const auto next = std::upper_bound(tables_.begin(), tables_.end(), sample,
                                       [](int64_t value, const Table& table) { return value < table.first; });
    return *std::prev(next);
  }
  bool has_unknown_words() const {
    return std::any_of(columns_.begin(), columns_.end(),
                       [](const Columns& field) { return field.spec.words && field.spec.classes.empty(); });
  }
  std::string wrong_count(size_t count) const {
    if (count == row_values_) return {};
    return fmt::format("expected {} values, found {}", row_values_, count);
  }

  /// Takes the columns from the first row of a file. The columns of all files are those of the first file.
  void define_columns(size_t f, const std::vector<std::string_view>& values, bool header) {
    const std::vector<std::string> names(values.begin(), values.end());
    if (f > 0) {
      if (header && names != names_)
        throw SpecError({}, "dataset.path",
                        fmt::format("{} has the columns {}, but {} has {}", files_.path(f), join(names), files_.path(0),
                                    join(names_)),
                        "all files need the same header");
      if (names.size() != row_values_) fail_line(files_.path(f), 1, wrong_count(names.size()));
      return;
    }
    if (header) names_ = names;
    row_values_ = names.size();
    for (Columns& field : columns_)
      for (const std::string& column : field.spec.columns)
        field.columns.push_back({find_column(field.spec.name, column), column});
  }

  size_t find_column(const std::string& field, const std::string& column) const {
    const auto named = std::find(names_.begin(), names_.end(), column);
    if (named != names_.end()) {
      if (const auto twin = std::find(std::next(named), names_.end(), column); twin != names_.end())
        throw SpecError(
            {}, "dataset.fields." + field,
            fmt::format("{} has the column '{}' twice, as columns {} and {}", files_.path(0),
                        printable(shortened(column)), named - names_.begin() + 1, twin - names_.begin() + 1),
            "rename one of them in the header, or select the column by its number");
      return static_cast<size_t>(named - names_.begin());
    }
    size_t number = 0;
    if (parse_number(column, number) && number >= 1 && number <= row_values_) return number - 1;
    throw SpecError({}, "dataset.fields." + field,
                    fmt::format("{} has no column '{}'", files_.path(0), printable(shortened(column))),
                    names_.empty() ? fmt::format("the columns are 1 to {}", row_values_) : columns_hint(column));
  }

  /// Tells why the header lacks a column: the file is not text, has another delimiter, or begins with its first sample.
  std::string columns_hint(const std::string& column) const {
    const std::string& first = names_.front();
    if (printable(first) != first && first.find('\t') == std::string::npos)
      return "the file does not begin with text, as an Excel file does not; save it as a csv file";
    if (names_.size() == 1)
      for (const auto& [delimiter, name] : {std::pair{'\t', "tab"}, {';', "';'"}, {'|', "'|'"}, {',', "','"}})
        if (delimiter != delimiter_ && first.find(delimiter) != std::string::npos)
          return fmt::format("the header is '{}': set dataset.delimiter: {}", printable(shortened(first)), name);
    float number = 0;
    if (std::any_of(names_.begin(), names_.end(),
                    [&](const std::string& name) { return parse_number(without_blanks(name), number); }))
      return fmt::format(
          "the first row is {}: if that is a sample, set dataset.header: false, and select columns by "
          "their numbers from 1 to {}",
          printable(shortened(join(names_))), names_.size());
    return names_hint("columns", names_, column);
  }

  void add_words(const std::string& file, int64_t line, const std::vector<std::string_view>& values,
                 std::vector<std::set<std::string, std::less<>>>& words) const {
    if (!has_unknown_words()) return;
    if (const std::string wrong = wrong_count(values.size()); !wrong.empty()) fail_line(file, line, wrong);
    for (size_t c = 0; c < columns_.size(); ++c) {
      const Columns& field = columns_[c];
      if (!field.spec.words || !field.spec.classes.empty()) continue;
      for (const Column& column : field.columns)
        if (words[c].find(values[column.place]) == words[c].end()) words[c].emplace(values[column.place]);
      if (words[c].size() > kMostWords)
        throw SpecError({}, "dataset.fields." + field.spec.name,
                        fmt::format("{}:{}: more than {} different words", file, line, with_commas(kMostWords)),
                        "use a column of classes, or a numeric type");
    }
  }

  static void number_words(Columns& field, const std::set<std::string, std::less<>>& found) {
    if (!field.spec.words) return;
    if (field.spec.classes.empty()) {
      field.spec.classes.assign(found.begin(), found.end());
      sort_as_numbers(field.spec.classes);
    }
    std::vector<std::pair<std::string, int64_t>> numbered;
    for (const std::string& word : field.spec.classes)
      numbered.emplace_back(word, static_cast<int64_t>(numbered.size()));
    std::sort(numbered.begin(), numbered.end());
    for (auto& [word, number] : numbered) {
      field.words.push_back(word);
      field.numbers.push_back(number);
    }
  }

  void define_fields() {
    const Columns* classes = nullptr;
    int with_words = 0;
    for (const Columns& field : columns_) {
      const auto count = static_cast<int64_t>(field.columns.size());
      check(!field.spec.scalar || count == 1, "a scalar is one column");
      fields_.push_back(
          {field.spec.name, Encoding::array, field.spec.type, field.spec.scalar ? Shape{} : Shape{count}});
      if (!field.spec.words) continue;
      check(field.spec.type != ElementType::f32, "the number of a word is i32 or i64");
      ++with_words;
      if (!classes || field.spec.name == "label") classes = &field;
    }
    // If several fields have words, the label's words are the classes.
    if (classes && (with_words == 1 || classes->spec.name == "label")) class_names_ = classes->spec.classes;
  }

  /// Converts a value. Returns what is wrong with it, or an empty text.
  std::string convert(const Columns& field, const std::vector<std::string_view>& values, FieldBytes& out) const {
    switch (field.spec.type) {
      case ElementType::i32:
        return convert_as<int32_t>(field, values, out);
      case ElementType::i64:
        return convert_as<int64_t>(field, values, out);
      default:
        check(field.spec.type == ElementType::f32, "columns are i32, i64 or f32");
    }
    return convert_as<float>(field, values, out);
  }

  template <class T>
  std::string convert_as(const Columns& field, const std::vector<std::string_view>& values, FieldBytes& out) const {
    out.resize(field.columns.size() * sizeof(T));
    for (size_t i = 0; i < field.columns.size(); ++i) {
      const std::string_view text = values[field.columns[i].place];
      T value{};
      if (field.spec.words) {
        const auto found = std::lower_bound(field.words.begin(), field.words.end(), text);
        if (found == field.words.end() || *found != text)
          return fmt::format("column '{}': '{}' is not one of the {} classes", field.columns[i].name,
                             printable(shortened(text)), field.words.size());
        value = static_cast<T>(field.numbers[static_cast<size_t>(found - field.words.begin())]);
      } else if (!parse_value(without_blanks(text), value)) {
        return fmt::format("column '{}': expected a number of type {}, found '{}'", field.columns[i].name,
                           to_string(field.spec.type), printable(shortened(text)));
      }
      std::memcpy(out.data() + i * sizeof(T), &value, sizeof(T));
    }
    return {};
  }

  char delimiter_;
  OpenFiles files_;
  std::vector<Table> tables_;
  std::vector<Columns> columns_;
  std::vector<std::string> names_;  ///< names of the columns, where there is a header
  size_t row_values_ = 0;
  int64_t size_ = 0;
  std::vector<SourceField> fields_;
  std::vector<std::string> class_names_;
};

}  // namespace

std::unique_ptr<Source> open_csv(const CsvOptions& options) { return std::make_unique<CsvSet>(options); }

}  // namespace trainctl
