// JSON Lines as a table: one JSON object per line. The lines are found
// once; a row is parsed when it is read.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/train/data/document_index.h"
#include "engine/train/data/tables/formats.h"
#include "engine/train/data/tables/plain_text.h"

namespace trainctl {
namespace {

using RowJson = nlohmann::ordered_json;

constexpr int64_t kTypedRows = 100;  ///< the first value that is not null among these rows determines a column's type
constexpr size_t kMostListDims = 8;

bool is_json_number(const RowJson& value) { return value.is_number() || value.is_boolean(); }

/// The shape of nested lists of numbers, from their first elements. False for other values.
bool shape_of_lists(const RowJson& value, Shape& shape) {
  const RowJson* at = &value;
  while (at->is_array()) {
    if (shape.size() == kMostListDims) return false;
    shape.push_back(static_cast<int64_t>(at->size()));
    if (at->empty()) return true;
    at = &at->front();
  }
  return is_json_number(*at);
}

bool append_numbers(const RowJson& value, const Shape& shape, size_t dim, std::vector<uint8_t>& bytes) {
  if (dim == shape.size()) {
    if (!is_json_number(value)) return false;
    const double number = value.is_boolean() ? (value.get<bool>() ? 1.0 : 0.0) : value.get<double>();
    const size_t at = bytes.size();
    bytes.resize(at + sizeof number);
    std::memcpy(bytes.data() + at, &number, sizeof number);
    return true;
  }
  if (!value.is_array() || static_cast<int64_t>(value.size()) != shape[dim]) return false;
  return std::all_of(value.begin(), value.end(),
                     [&](const RowJson& element) { return append_numbers(element, shape, dim + 1, bytes); });
}

class JsonLines final : public TableFile {
 public:
  explicit JsonLines(const std::string& path) : lines_({path}) {
    for (int64_t row = 0; row < std::min(size(), kTypedRows); ++row) {
      const RowJson object = parse(row);
      for (const auto& [name, value] : object.items()) add_column(name, value);
    }
  }

  int64_t size() const override { return lines_.size(); }
  const std::vector<TableColumn>& columns() const override { return columns_; }
  std::string where(int64_t row) const override { return lines_.where(row); }
  void expect(int64_t row) const override { lines_.expect(row); }
  int64_t memory_bytes() const override { return lines_.memory_bytes(); }

  std::string json(int64_t row, const std::vector<std::string>& names) const override {
    if (names.empty()) return lines_.read(row);
    const RowJson object = parse(row);
    RowJson chosen = RowJson::object();
    for (const std::string& name : names)
      if (const auto found = object.find(name); found != object.end()) chosen[name] = *found;
    return chosen.dump();
  }

  void read(int64_t row, std::span<const size_t> columns, std::span<TableValue> out) const override {
    const RowJson object = parse(row);
    for (size_t i = 0; i < columns.size(); ++i) {
      const TableColumn& column = columns_[columns[i]];
      TableValue& value = out[i];
      value.is_null = true;
      value.bytes.clear();
      value.shape.clear();
      const auto found = object.find(column.name);
      if (found == object.end() || found->is_null()) continue;
      if (column.kind == ColumnKind::number)
        read_numbers(row, column, *found, value);
      else if (column.kind == ColumnKind::text && found->is_string())
        value.set_bytes(found->get_ref<const std::string&>());
      else if (column.kind == ColumnKind::text)
        fail(row, column, "expected text");
      else
        value.set_bytes(found->dump());
    }
  }

 private:
  void add_column(const std::string& name, const RowJson& value) {
    const auto known = std::find_if(columns_.begin(), columns_.end(), [&](const auto& c) { return c.name == name; });
    if (known != columns_.end() && known->kind != ColumnKind::nested) return;
    TableColumn column{name, ColumnKind::nested};
    Shape shape;
    if (value.is_string()) {
      column.kind = ColumnKind::text;
    } else if (shape_of_lists(value, shape)) {
      column = {name, ColumnKind::number, StoredElement::f64, std::move(shape), true};
    }
    if (known == columns_.end())
      columns_.push_back(std::move(column));
    else
      *known = std::move(column);
  }

  [[noreturn]] void fail(int64_t row, const TableColumn& column, const std::string& what) const {
    throw EnvError(where(row) + ": '" + printable(column.name) + "': " + what);
  }

  void read_numbers(int64_t row, const TableColumn& column, const RowJson& from, TableValue& value) const {
    if (!shape_of_lists(from, value.shape)) fail(row, column, "expected " + column.type_text());
    value.is_null = false;
    if (!append_numbers(from, value.shape, 0, value.bytes)) fail(row, column, "the lists differ in their lengths");
  }

  RowJson parse(int64_t row) const {
    const std::string line = lines_.read(row);
    if (!is_shallow_json(line)) throw EnvError(where(row) + ": is nested too deeply");
    RowJson object = RowJson::parse(line, nullptr, false);
    if (!object.is_object()) throw EnvError(where(row) + ": expected a JSON object");
    return object;
  }

  DocumentIndex lines_;
  std::vector<TableColumn> columns_;
};

}  // namespace

std::unique_ptr<TableFile> open_json_lines(const std::string& path) { return std::make_unique<JsonLines>(path); }

}  // namespace trainctl
