// Writes the rows of a table as TFRecord files of tf.Example messages.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/train/data/tables/crc32c.h"
#include "engine/train/data/tables/part_file.h"
#include "engine/train/data/tables/table_writer.h"
#include "engine/train/files/protocol_buffer.h"

namespace trainctl {
namespace {

std::span<const uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

bool is_float(const TableColumn& column) {
  return element_type(column.element) == ElementType::f32 || element_type(column.element) == ElementType::bf16;
}

int64_t integer_at(StoredElement element, const uint8_t* at) {
  if (element != StoredElement::i64) return static_cast<int64_t>(stored_as_double(element, at));
  int64_t value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// A tf.Example per row: integers, floats as f32, and bytes. A null is a feature that is missing. The values of arrays
/// follow each other, because TFRecord files have no shapes.
class TfRecordWriter final : public TableWriter {
 public:
  explicit TfRecordWriter(const TableWriterOptions& options)
      : columns_(options.columns), file_(options.path, options.replace) {
    for (const TableColumn& column : columns_) refuse_nested(column);
  }

  void write(const TableFile& from, int64_t row, const std::vector<size_t>& columns) override {
    values_.resize(columns.size());
    from.read(row, columns, values_);
    ProtocolBuffer features;
    for (size_t i = 0; i < columns.size(); ++i) {
      if (values_[i].is_null) continue;
      ProtocolBuffer entry;
      entry.bytes(1, columns_[i].name).message(2, feature_of(columns_[i], values_[i], from.where(row)));
      features.message(1, entry);
    }
    ProtocolBuffer example;
    example.message(1, features);
    const std::string& message = example.text();
    std::string header;
    append_number(header, uint64_t{message.size()});
    append_number(header, tf_checksum(bytes_of(header)));
    file_.write(header);
    file_.write(message);
    std::string footer;
    append_number(footer, tf_checksum(bytes_of(message)));
    file_.write(footer);
  }
  void finish() override { file_.finish(); }

 private:
  static ProtocolBuffer feature_of(const TableColumn& column, const TableValue& value, const std::string& where) {
    ProtocolBuffer list, feature;
    if (column.kind != ColumnKind::number) {
      list.bytes(1, value.text());
      feature.message(1, list);
      return feature;
    }
    const auto width = static_cast<size_t>(byte_size(column.element));
    for (size_t at = 0; at < value.bytes.size(); at += width) {
      if (!is_float(column)) {
        list.integer(1, static_cast<uint64_t>(integer_at(column.element, value.bytes.data() + at)));
        continue;
      }
      const double number = stored_as_double(column.element, value.bytes.data() + at);
      if (std::isfinite(number) && std::abs(number) > std::numeric_limits<float>::max())
        throw EnvError(fmt::format("{}: '{}': {} is too large for the 32-bit floats of TFRecord files", where,
                                   printable(column.name), number));
      list.f32(1, static_cast<float>(number));
    }
    feature.message(is_float(column) ? 2 : 3, list);
    return feature;
  }

  std::vector<TableColumn> columns_;
  PartFile file_;
  std::vector<TableValue> values_;
};

}  // namespace

std::unique_ptr<TableWriter> write_tfrecord(const TableWriterOptions& options) {
  return std::make_unique<TfRecordWriter>(options);
}

}  // namespace trainctl
