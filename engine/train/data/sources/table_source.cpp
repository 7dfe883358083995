// Presents tables (table_file.h) as a source: a row is a sample, and a field is one column or several.
#include "engine/train/data/sources/table_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/train/data/sources/csv_text.h"
#include "engine/train/data/sources/field_bytes.h"
#include "engine/train/data/sources/names_hint.h"
#include "engine/train/data/sources/npy_header.h"
#include "engine/train/data/tables/table_file.h"

namespace trainctl {
namespace {

constexpr size_t kMostTableWords = 1 << 16;

/// Tells how the values of a field become its elements.
enum class TableWay : uint8_t { elements, joined, words, image, npy, raw };

struct TableColumns {
  TableField spec;
  TableWay way = TableWay::elements;
  std::vector<size_t> places;                ///< in the chosen columns of a file
  std::vector<TableColumn> types;            ///< the columns of the first file
  std::vector<std::string> words;            ///< sorted
  std::vector<int32_t> numbers;              ///< number of each word
  StoredElement stored = StoredElement::u8;  ///< npy, elements
};

/// One file, and the numbers of the chosen columns in it.
struct OpenTable {
  std::unique_ptr<TableFile> file;
  std::vector<size_t> columns;
  int64_t first = 0;  ///< sample of the set
};

/// The word of a text, or of a number that is a class: "-1", "0.5".
std::string word_of(const TableColumn& type, const TableValue& value) {
  if (type.kind != ColumnKind::number || value.is_null) return std::string(value.text());
  return fmt::format("{}", stored_as_double(type.element, value.bytes.data()));
}

/// Appends a number as f32 or i32. Returns what is wrong with it, or an empty text.
std::string append_table_number(double value, bool integer, FieldBytes& out) {
  const size_t at = out.size();
  out.resize(at + 4);
  if (!integer) {
    const auto narrow = static_cast<float>(value);
    if (std::isinf(narrow) && std::isfinite(value)) return fmt::format("{} is too large for a 32-bit float", value);
    std::memcpy(out.data() + at, &narrow, sizeof narrow);
    return {};
  }
  if (!(std::trunc(value) == value && std::abs(value) <= std::numeric_limits<int32_t>::max()))
    return fmt::format("expected a 32-bit integer, found {}", value);
  const auto whole = static_cast<int32_t>(value);
  std::memcpy(out.data() + at, &whole, sizeof whole);
  return {};
}

bool is_image_file(std::string_view bytes) { return bytes.starts_with("\xff\xd8\xff") || bytes.starts_with("\x89PNG"); }

bool is_npy(const TableValue& value) { return value.text().starts_with("\x93NUMPY"); }

class TableSet final : public Source {
 public:
  explicit TableSet(const TableOptions& options) {
    for (const TableField& field : options.fields) fields_of_job_.push_back({field});
    for (const std::string& path : options.files) add_file(path);
    if (size_ == 0)
      throw SpecError({}, "dataset.path", options.files.front() + ": contains no rows",
                      "a table needs one row per sample");
    std::vector<TableValue> first(names_.size());
    read_row(0, first);
    for (TableColumns& field : fields_of_job_) define(field, first);
    const TableColumns* classes = nullptr;
    int with_names = 0;
    for (const TableColumns& field : fields_of_job_) {
      if (names_of_classes(field).empty()) continue;
      ++with_names;
      if (classes == nullptr || field.spec.name == "label") classes = &field;
    }
    if (classes != nullptr && (with_names == 1 || classes->spec.name == "label"))
      class_names_ = names_of_classes(*classes);
  }

  int64_t size() const override { return size_; }
  const std::vector<SourceField>& fields() const override { return fields_; }
  const std::vector<std::string>& class_names() const override { return class_names_; }
  std::string where(int64_t sample) const override {
    const OpenTable& table = table_of(sample);
    return table.file->where(sample - table.first);
  }
  void expect(int64_t sample) const override {
    const OpenTable& table = table_of(sample);
    table.file->expect(sample - table.first);
  }
  int64_t memory_bytes() const override {
    int64_t bytes = 0;
    for (const OpenTable& table : tables_) bytes += table.file->memory_bytes();
    for (const TableColumns& field : fields_of_job_)
      for (const std::string& word : field.words) bytes += static_cast<int64_t>(sizeof(word) + word.capacity());
    return bytes;
  }

  void read(int64_t sample, const std::vector<bool>& wanted, std::span<FieldBytes> out) const override {
    thread_local std::vector<size_t> places, columns;
    thread_local std::vector<TableValue> chosen, values;
    const OpenTable& table = table_of(sample);
    places.clear();
    columns.clear();
    for (size_t f = 0; f < fields_of_job_.size(); ++f)
      if (wanted[f])
        for (const size_t place : fields_of_job_[f].places)
          if (std::find(places.begin(), places.end(), place) == places.end()) {
            places.push_back(place);
            columns.push_back(table.columns[place]);
          }
    chosen.resize(std::max(chosen.size(), places.size()));
    values.resize(std::max(values.size(), names_.size()));
    table.file->read(sample - table.first, columns, std::span(chosen).first(places.size()));
    for (size_t i = 0; i < places.size(); ++i) std::swap(values[places[i]], chosen[i]);
    for (size_t f = 0; f < fields_of_job_.size(); ++f) {
      if (!wanted[f]) continue;
      const std::string wrong = convert_field(fields_of_job_[f], fields_[f], values, out[f]);
      if (!wrong.empty()) throw EnvError(where(sample) + ": " + wrong);
    }
  }

 private:
  const OpenTable& table_of(int64_t sample) const {
    const auto next = std::upper_bound(tables_.begin(), tables_.end(), sample,
                                       [](int64_t value, const OpenTable& table) { return value < table.first; });
    return *std::prev(next);
  }

  /// Reads all chosen columns of one sample.
  void read_row(int64_t sample, std::span<TableValue> values) const {
    const OpenTable& table = table_of(sample);
    table.file->read(sample - table.first, table.columns, values);
  }

  void add_file(const std::string& path) {
    OpenTable table{open_table_file(path), {}, size_};
    if (table.file->size() == 0) return;
    const bool is_first = tables_.empty();
    for (TableColumns& field : fields_of_job_) {
      for (const std::string& column : field.spec.columns) {
        const int found = table.file->find(column);
        if (found < 0) fail_column(field, column, path, *table.file);
        const TableColumn& type = table.file->columns()[static_cast<size_t>(found)];
        if (!is_first) {
          require_same(field, column, type, path);
          continue;
        }
        field.types.push_back(type);
        const auto known = std::find(names_.begin(), names_.end(), column);
        field.places.push_back(static_cast<size_t>(known - names_.begin()));
        if (known == names_.end()) names_.push_back(column);
      }
    }
    for (const std::string& name : names_) table.columns.push_back(static_cast<size_t>(table.file->find(name)));
    table.file->choose(table.columns);
    size_ += table.file->size();
    tables_.push_back(std::move(table));
  }

  [[noreturn]] static void fail_column(const TableColumns& field, const std::string& column, const std::string& path,
                                       const TableFile& file) {
    std::vector<std::string> names;
    for (const TableColumn& one : file.columns()) names.push_back(one.name);
    throw SpecError({}, "dataset.fields." + field.spec.name,
                    fmt::format("{} has no column '{}'", path, printable(shortened(column))),
                    names_hint("columns", names, column));
  }

  void require_same(const TableColumns& field, const std::string& column, const TableColumn& type,
                    const std::string& path) const {
    const auto at = std::find(field.spec.columns.begin(), field.spec.columns.end(), column);
    const TableColumn& first = field.types[static_cast<size_t>(at - field.spec.columns.begin())];
    const bool is_same = type.kind == first.kind &&
                         (type.kind != ColumnKind::number || type.element == first.element) &&
                         type.shape.size() == first.shape.size();
    if (is_same) return;
    throw SpecError({}, "dataset.path",
                    fmt::format("{}: the column '{}' is {}, but in the first file it is {}", path,
                                printable(shortened(column)), type.type_text(), first.type_text()),
                    "the files of a set need columns of the same types");
  }

  /// Determines how the columns of a field become numbers, and its shape, from the first row.
  void define(TableColumns& field, const std::vector<TableValue>& first) {
    const std::string at = "dataset.fields." + field.spec.name;
    SourceField to{field.spec.name, Encoding::array, field.spec.integers ? ElementType::i32 : ElementType::f32, {}};
    const auto is_text = [](const TableColumn& type) { return type.kind == ColumnKind::text; };
    const bool is_number = field.types.front().kind == ColumnKind::number && first[field.places.front()].shape.empty();
    const bool words = std::all_of(field.types.begin(), field.types.end(), is_text) ||
                       (field.spec.distinct && field.types.size() == 1 && is_number);
    if (words || field.types.size() > 1) {
      for (const TableColumn& type : field.types)
        if (!words && (type.kind != ColumnKind::number || !type.shape.empty()))
          throw SpecError({}, at,
                          fmt::format("the column '{}' is {}", printable(shortened(type.name)), type.type_text()),
                          "a field of several columns takes one number or one string from each");
      field.way = words ? TableWay::words : TableWay::joined;
      if (words) to.type = ElementType::i32;
      if (!field.spec.scalar) to.shape = {static_cast<int64_t>(field.types.size())};
      if (words) number_words(field);
      fields_.push_back(std::move(to));
      return;
    }
    const TableColumn& type = field.types.front();
    const TableValue& value = first[field.places.front()];
    if (value.is_null)
      throw SpecError({}, at, fmt::format("{}: '{}' is null", where(0), printable(shortened(type.name))),
                      "the first row needs a value, because it determines the type of the field");
    if (type.kind == ColumnKind::number) {
      define_numbers(field, type, value, to);
    } else if (type.kind == ColumnKind::bytes) {
      define_bytes(field, value, to);
    } else {
      throw SpecError({}, at, fmt::format("the column '{}' is {}", printable(shortened(type.name)), type.type_text()),
                      "a field takes numbers, lists of numbers, texts or bytes; type: chat reads conversations");
    }
    fields_.push_back(std::move(to));
  }

  void define_numbers(TableColumns& field, const TableColumn& type, const TableValue& value, SourceField& to) {
    to.shape = value.shape;
    if (to.shape.empty() && !field.spec.scalar) to.shape = {1};
    if (num_elements(to.shape) == 0)
      throw SpecError({}, "dataset.fields." + field.spec.name, where(0) + ": the list is empty",
                      "all rows need lists of the same length");
    if (type.is_untyped) {
      field.way = TableWay::joined;
    } else {
      field.stored = type.element;
      to.type = element_type(type.element);
    }
  }

  void define_bytes(TableColumns& field, const TableValue& value, SourceField& to) const {
    to.type = ElementType::u8;
    to.shape = {-1};
    field.way = TableWay::raw;
    if (is_image_file(value.text())) {
      field.way = TableWay::image;
      to.encoding = Encoding::image;
      to.shape = {};
    } else if (is_npy(value)) {
      field.way = TableWay::npy;
      const NpyHeader header = parse_npy_header(value.bytes, static_cast<int64_t>(value.bytes.size()), where(0));
      field.stored = header.stored;
      to.type = element_type(header.stored);
      to.shape = header.shape;
    }
  }

  /// Numbers the words of a column: reads the column of every row, unless the words are already known.
  void number_words(TableColumns& field) const {
    if (field.spec.classes.empty()) {
      std::set<std::string, std::less<>> words;
      for (const OpenTable& table : tables_) {
        std::vector<size_t> columns;
        for (const size_t place : field.places) columns.push_back(table.columns[place]);
        std::vector<TableValue> values(columns.size());
        for (int64_t row = 0; row < table.file->size(); ++row) {
          table.file->read(row, columns, values);
          for (size_t i = 0; i < values.size(); ++i) words.insert(word_of(field.types[i], values[i]));
          if (words.size() > kMostTableWords)
            throw SpecError({}, "dataset.fields." + field.spec.name,
                            fmt::format("{}: more than {} different words", table.file->where(row),
                                        with_commas(int64_t{kMostTableWords})),
                            "use a column of classes or of numbers; type: text with a tokenizer reads texts");
        }
      }
      field.spec.classes.assign(words.begin(), words.end());
      sort_as_numbers(field.spec.classes);
    }
    std::vector<std::pair<std::string, int32_t>> numbered;
    for (const std::string& word : field.spec.classes)
      numbered.emplace_back(word, static_cast<int32_t>(numbered.size()));
    std::sort(numbered.begin(), numbered.end());
    for (auto& [word, number] : numbered) {
      field.words.push_back(word);
      field.numbers.push_back(number);
    }
  }

  static const std::vector<std::string>& names_of_classes(const TableColumns& field) {
    return field.way == TableWay::words ? field.spec.classes : field.types.front().classes;
  }

  /// Converts a value. Returns what is wrong with it, or an empty text.
  std::string convert_field(const TableColumns& field, const SourceField& to, const std::vector<TableValue>& values,
                            FieldBytes& out) const {
    for (size_t i = 0; i < field.places.size(); ++i)
      if (values[field.places[i]].is_null)
        return fmt::format("'{}' is null", printable(shortened(field.types[i].name)));
    const TableValue& value = values[field.places.front()];
    const std::string name = printable(shortened(field.types.front().name));
    switch (field.way) {
      case TableWay::words:
        return convert_words(field, values, out);
      case TableWay::joined:
        return convert_joined(field, to, values, out);
      case TableWay::npy:
        return convert_npy(field, to, value, out);
      case TableWay::elements:
        if (num_elements(value.shape) != num_elements(to.shape) ||
            value.shape.size() > std::max<size_t>(to.shape.size(), 1))
          return wrong_shape(name, value.shape, to.shape);
        convert(field.stored, value.bytes, out);
        return {};
      case TableWay::image:
      case TableWay::raw:
        store(std::span<const uint8_t>(value.bytes), out);
    }
    return {};
  }

  static std::string wrong_shape(const std::string& name, const Shape& found, const Shape& expected) {
    return fmt::format("'{}' has the shape {}, but the first row has {}", name, to_string(found), to_string(expected));
  }

  static std::string convert_words(const TableColumns& field, const std::vector<TableValue>& values, FieldBytes& out) {
    out.clear();
    for (size_t i = 0; i < field.places.size(); ++i) {
      const std::string text = word_of(field.types[i], values[field.places[i]]);
      const auto found = std::lower_bound(field.words.begin(), field.words.end(), text);
      if (found == field.words.end() || *found != text)
        return fmt::format("'{}': '{}' is not one of the {} classes", printable(shortened(field.types[i].name)),
                           printable(shortened(text)), field.words.size());
      append_table_number(field.numbers[static_cast<size_t>(found - field.words.begin())], true, out);
    }
    return {};
  }

  static std::string convert_joined(const TableColumns& field, const SourceField& to,
                                    const std::vector<TableValue>& values, FieldBytes& out) {
    out.clear();
    for (size_t i = 0; i < field.places.size(); ++i) {
      const TableValue& value = values[field.places[i]];
      const StoredElement element = field.types[i].element;
      const std::string name = printable(shortened(field.types[i].name));
      const int64_t expected = field.places.size() > 1 ? 1 : num_elements(to.shape);
      if (num_elements(value.shape) != expected) return wrong_shape(name, value.shape, to.shape);
      for (int64_t n = 0; n < expected; ++n) {
        const double number = stored_as_double(element, value.bytes.data() + n * byte_size(element));
        if (const std::string wrong = append_table_number(number, to.type == ElementType::i32, out); !wrong.empty())
          return fmt::format("'{}': {}", name, wrong);
      }
    }
    return {};
  }

  static std::string convert_npy(const TableColumns& field, const SourceField& to, const TableValue& value,
                                 FieldBytes& out) {
    const NpyHeader header =
        parse_npy_header(value.bytes, static_cast<int64_t>(value.bytes.size()), field.types.front().name);
    if (header.stored != field.stored) return "the array has a different type than that of the first row";
    if (header.shape != to.shape) return wrong_shape(field.types.front().name, header.shape, to.shape);
    convert(header.stored, std::span(value.bytes).subspan(static_cast<size_t>(header.data_at)), out);
    return {};
  }

  std::vector<TableColumns> fields_of_job_;
  std::vector<std::string> names_;  ///< chosen columns, without repetition
  std::vector<OpenTable> tables_;
  int64_t size_ = 0;
  std::vector<SourceField> fields_;
  std::vector<std::string> class_names_;
};

}  // namespace

std::unique_ptr<Source> open_table(const TableOptions& options) { return std::make_unique<TableSet>(options); }

}  // namespace trainctl
