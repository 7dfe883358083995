// Writes the rows of a table as MDS, the format of MosaicML Streaming (mds.h): index.json and shards.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/train/data/tables/part_file.h"
#include "engine/train/data/tables/table_writer.h"
#include "engine/train/files/protocol_buffer.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

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

}  // namespace

std::unique_ptr<TableWriter> write_mds(const TableWriterOptions& options) {
  return std::make_unique<MdsWriter>(options);
}

}  // namespace trainctl
