// Writes TFRecord files, shards of MDS, and tokens of Megatron.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/train/data/tables/crc32c.h"
#include "engine/train/data/tables/mds.h"
#include "engine/train/data/tables/part_file.h"
#include "engine/train/data/tables/table_writer.h"
#include "engine/train/files/protocol_buffer.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

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
        throw EnvError(fmt::format("{}: '{}': {} is too large for a 32-bit float, which TFRecord files have", where,
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

const char* mds_name(StoredElement element) {
  switch (element) {
    case StoredElement::boolean:
    case StoredElement::u8:
      return "uint8";
    case StoredElement::i8:
      return "int8";
    case StoredElement::u16:
      return "uint16";
    case StoredElement::i16:
      return "int16";
    case StoredElement::i32:
      return "int32";
    case StoredElement::u32:
      return "uint32";
    case StoredElement::i64:
      return "int64";
    case StoredElement::f16:
      return "float16";
    case StoredElement::f64:
      return "float64";
    default:
      return "float32";  // bf16 is widened
  }
}

/// index.json, and next to it the shards, each of at most kShardBytes unless one row is larger.
class MdsWriter final : public TableWriter {
 public:
  explicit MdsWriter(const TableWriterOptions& options) : options_(options), folder_(folder_of(options.path)) {
    make_folder_of(options.path);
    index_ = std::make_unique<PartFile>(options.path, options.replace);
    for (const TableColumn& column : options.columns) {
      refuse_nested(column);
      encodings_.push_back(encoding_of(column));
    }
    order_.resize(options.columns.size());
    for (size_t i = 0; i < order_.size(); ++i) order_[i] = i;
    std::sort(order_.begin(), order_.end(),
              [&](size_t a, size_t b) { return options.columns[a].name < options.columns[b].name; });
  }
  ~MdsWriter() override {
    std::error_code ignored;
    for (const std::string& shard : written_) fs::remove(shard, ignored);
  }
  MdsWriter(const MdsWriter&) = delete;
  MdsWriter& operator=(const MdsWriter&) = delete;

  void write(const TableFile& from, int64_t row, const std::vector<size_t>& columns) override {
    values_.resize(columns.size());
    from.read(row, columns, values_);
    std::string sizes, values;
    for (const size_t i : order_) {
      if (values_[i].is_null)
        throw EnvError(fmt::format("{}: '{}' is null, which MDS cannot hold", from.where(row),
                                   printable(options_.columns[i].name)));
      const std::string value = value_of(i);
      if (encodings_[i].bytes == 0) append_number(sizes, static_cast<uint32_t>(value.size()));
      values += value;
    }
    constexpr size_t kShardBytes = size_t{1} << 26;
    if (!ends_.empty() && samples_.size() + sizes.size() + values.size() > kShardBytes) flush();
    if (samples_.size() + sizes.size() + values.size() > std::numeric_limits<uint32_t>::max() / 2)
      throw EnvError(from.where(row) + ": is too large for a shard of MDS");
    samples_ += sizes + values;
    ends_.push_back(samples_.size());
  }

  void finish() override {
    if (!ends_.empty()) flush();
    const nlohmann::ordered_json index = {{"version", 2}, {"shards", shards_}};
    index_->write(index.dump());
    index_->finish();
    written_.clear();
  }

 private:
  struct Encoding {
    std::string name;
    int64_t bytes = 0;  ///< 0: they differ
  };

  static fs::path folder_of(const std::string& index) {
    const fs::path folder = fs::path(index).parent_path();
    return folder.empty() ? fs::path(".") : folder;
  }

  static Encoding encoding_of(const TableColumn& column) {
    if (column.kind == ColumnKind::text) return {"str", 0};
    if (column.kind == ColumnKind::json) return {"json", 0};
    if (column.kind == ColumnKind::bytes) return {"bytes", 0};
    const std::string name = mds_name(column.element);
    const int64_t width = column.element == StoredElement::bf16 ? 4 : byte_size(column.element);
    if (column.shape.empty()) return {name, width};
    return {"ndarray:" + name, 0};
  }

  std::string value_of(size_t i) const {
    const TableColumn& column = options_.columns[i];
    const TableValue& value = values_[i];
    if (column.kind != ColumnKind::number) return std::string(value.text());
    std::string out;
    if (!column.shape.empty()) {  // the dims as u32
      constexpr uint8_t kWidth = 2;
      if (value.shape.size() > 63) throw EnvError("an array has too many dims for MDS");
      out += static_cast<char>(value.shape.size() << 2 | kWidth);
      for (const int64_t dim : value.shape) append_number(out, static_cast<uint32_t>(dim));
    }
    if (column.element != StoredElement::bf16) return out + std::string(value.text());
    for (size_t at = 0; at + 1 < value.bytes.size(); at += 2) {
      out += std::string(2, '\0');
      out += static_cast<char>(value.bytes[at]);
      out += static_cast<char>(value.bytes[at + 1]);
    }
    return out;
  }

  nlohmann::ordered_json shard_header() const {
    std::vector<std::string> names, encodings;
    nlohmann::ordered_json sizes = nlohmann::ordered_json::array();
    for (const size_t i : order_) {
      names.push_back(options_.columns[i].name);
      encodings.push_back(encodings_[i].name);
      sizes.push_back(encodings_[i].bytes > 0 ? nlohmann::ordered_json(encodings_[i].bytes)
                                              : nlohmann::ordered_json(nullptr));
    }
    return {{"column_encodings", encodings}, {"column_names", names}, {"column_sizes", sizes},
            {"compression", nullptr},        {"format", "mds"},       {"hashes", nlohmann::ordered_json::array()},
            {"size_limit", 1 << 26},         {"version", 2}};
  }

  void flush() {
    nlohmann::ordered_json shard = shard_header();
    const std::string config = shard.dump(), name = fmt::format("shard.{:05}.mds", shards_.size());
    std::string head;
    append_number(head, static_cast<uint32_t>(ends_.size()));
    const uint64_t first = 4 * (ends_.size() + 2) + config.size();
    append_number(head, static_cast<uint32_t>(first));
    for (const uint64_t end : ends_) append_number(head, static_cast<uint32_t>(first + end));
    PartFile file((folder_ / name).string(), options_.replace);
    file.write(head);
    file.write(config);
    file.write(samples_);
    shard["raw_data"] = {{"basename", name}, {"bytes", file.bytes()}, {"hashes", nlohmann::ordered_json::object()}};
    shard["samples"] = ends_.size();
    shard["zip_data"] = nullptr;
    file.finish();
    written_.push_back((folder_ / name).string());
    shards_.push_back(std::move(shard));
    samples_.clear();
    ends_.clear();
  }

  TableWriterOptions options_;
  fs::path folder_;
  std::unique_ptr<PartFile> index_;
  std::vector<Encoding> encodings_;
  std::vector<size_t> order_;  ///< columns by name, as the library orders them
  std::vector<TableValue> values_;
  std::string samples_;
  std::vector<uint64_t> ends_;  ///< ends of this shard's samples
  nlohmann::ordered_json shards_ = nlohmann::ordered_json::array();
  std::vector<std::string> written_;  ///< shards, which are removed unless the index is written
};

/// NAME.idx, and NAME.bin with the tokens as i32: a row is a document of one sequence.
class MegatronWriter final : public TableWriter {
 public:
  explicit MegatronWriter(const TableWriterOptions& options)
      : column_(options.columns[0]),
        index_(options.path, options.replace),
        tokens_(fs::path(options.path).replace_extension(".bin").string(), options.replace) {
    if (options.columns.size() != 1 || column_.kind != ColumnKind::number || column_.shape.size() > 1)
      throw EnvError("a file of Megatron takes one column of tokens; choose it with --columns NAME");
  }

  void write(const TableFile& from, int64_t row, const std::vector<size_t>& columns) override {
    TableValue value;
    from.read(row, columns, std::span(&value, 1));
    if (value.is_null) throw EnvError(from.where(row) + ": the tokens are null");
    std::string tokens;
    const auto width = static_cast<size_t>(byte_size(column_.element));
    for (size_t at = 0; at < value.bytes.size(); at += width) {
      const double token = stored_as_double(column_.element, value.bytes.data() + at);
      if (!(token >= 0 && token <= std::numeric_limits<int32_t>::max() && std::trunc(token) == token))
        throw EnvError(fmt::format("{}: {} is not a token", from.where(row), token));
      append_number(tokens, static_cast<int32_t>(token));
    }
    lengths_.push_back(static_cast<int32_t>(tokens.size() / sizeof(int32_t)));
    tokens_.write(tokens);
  }

  void finish() override {
    constexpr uint8_t kInt32 = 4;
    std::string head("MMIDIDX\0\0", 9);
    append_number(head, uint64_t{1});
    append_number(head, kInt32);
    append_number(head, uint64_t{lengths_.size()});
    append_number(head, uint64_t{lengths_.size() + 1});
    std::string places, firsts;
    int64_t place = 0;
    for (size_t i = 0; i <= lengths_.size(); ++i) {
      append_number(firsts, static_cast<int64_t>(i));
      if (i == lengths_.size()) break;
      append_number(places, place);
      place += int64_t{lengths_[i]} * static_cast<int64_t>(sizeof(int32_t));
    }
    index_.write(head);
    index_.write({reinterpret_cast<const uint8_t*>(lengths_.data()), lengths_.size() * sizeof(int32_t)});
    index_.write(places);
    index_.write(firsts);
    tokens_.finish();
    index_.finish();
  }

 private:
  TableColumn column_;
  PartFile index_, tokens_;
  std::vector<int32_t> lengths_;
};

}  // namespace

std::unique_ptr<TableWriter> write_tfrecord(const TableWriterOptions& options) {
  return std::make_unique<TfRecordWriter>(options);
}
std::unique_ptr<TableWriter> write_mds(const TableWriterOptions& options) {
  return std::make_unique<MdsWriter>(options);
}
std::unique_ptr<TableWriter> write_megatron(const TableWriterOptions& options) {
  return std::make_unique<MegatronWriter>(options);
}

}  // namespace trainctl
