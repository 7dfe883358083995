// MDS, the format of MosaicML Streaming.
#include "engine/train/data/tables/mds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/base/url.h"
#include "engine/train/data/file_patterns.h"
#include "engine/train/data/inflated_file.h"
#include "engine/train/data/sources/open_files.h"
#include "engine/train/data/tables/block_cache.h"
#include "engine/train/data/tables/mds_values.h"
#include "engine/train/data/tables/plain_name.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

struct MdsShard {
  std::string path;                             ///< the file that is read
  bool is_compressed = false, is_gzip = false;  ///< by zstd, or by gzip
  int64_t samples = 0, bytes = 0;               ///< bytes: without compression
};

struct MdsIndexFile {
  std::vector<MdsColumn> columns;
  std::vector<MdsShard> shards;
};

/// The whole content of a compressed shard.
struct MdsBlock final : public CachedBlock {
  std::vector<uint8_t> bytes;
};

class MdsIndexParser {
 public:
  explicit MdsIndexParser(const std::string& index) : path_(index), folder_(fs::path(index).parent_path()) {}

  MdsIndexFile parse() {
    const auto json = nlohmann::json::parse(read_whole_file(path_), nullptr, false);
    if (!json.is_object()) fail("expected a JSON object");
    if (integer(json, "version") != 2) fail("expected version 2");
    const auto shards = json.find("shards");
    if (shards == json.end() || !shards->is_array()) fail("expected the list shards");
    if (!path_.starts_with("http") && is_url(path_) && !shards->empty())
      (void)files_matching((folder_ / "*").string());  // one request returns the sizes of all shards
    for (const auto& shard : *shards) add_shard(shard);
    return std::move(result_);
  }

 private:
  using IndexJson = nlohmann::json;

  [[noreturn]] void fail(const std::string& what) const {
    throw EnvError(path_ + ": " + what + "; is it an index of MDS?");
  }

  int64_t integer(const IndexJson& object, const char* key) const {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_number_integer() || found->get<double>() < 0 || found->get<double>() > 1e15)
      fail(std::string("expected the count ") + key);
    return found->get<int64_t>();
  }

  std::vector<std::string> texts(const IndexJson& object, const char* key) const {
    const auto found = object.find(key);
    std::vector<std::string> all;
    if (found == object.end() || !found->is_array()) fail(std::string("expected the list ") + key);
    for (const auto& text : *found) {
      if (!text.is_string()) fail(std::string(key) + " has an entry that is not a string");
      all.push_back(text.get<std::string>());
    }
    return all;
  }

  void add_shard(const IndexJson& json) {
    if (!json.is_object()) fail("an entry of shards is not an object");
    const auto format = json.find("format");
    if (format == json.end() || *format != "mds") fail("a shard has a format other than mds");
    add_columns(json);
    MdsShard shard;
    shard.samples = integer(json, "samples");
    const auto raw = json.find("raw_data");
    if (raw == json.end() || !raw->is_object()) fail("a shard has no raw_data");
    shard.bytes = integer(*raw, "bytes");
    shard.path = file(*raw);
    constexpr int64_t kMostShardBytes = int64_t{1} << 32;  // offsets have 32 bits
    if (shard.bytes > kMostShardBytes || shard.samples > shard.bytes / 4)
      fail(fmt::format("a shard of {} bytes cannot have {} samples", with_commas(shard.bytes),
                       with_commas(shard.samples)));
    const auto zip = json.find("zip_data");
    const bool has_zip = zip != json.end() && zip->is_object();
    if (has_zip && (is_url(path_) || !path_exists(shard.path))) use_compressed(json, *zip, shard);
    result_.shards.push_back(std::move(shard));
  }

  void use_compressed(const IndexJson& json, const IndexJson& zip, MdsShard& shard) const {
    const auto name = json.find("compression");
    const std::string compression = name != json.end() && name->is_string() ? name->get<std::string>() : "";
    if (!compression.starts_with("zstd") && !compression.starts_with("gz"))
      fail("the compression '" + printable(shortened(compression)) +
           "' is not supported; decompress the shards, or write them with zstd or gz");
    shard.path = file(zip);
    shard.is_compressed = true;
    shard.is_gzip = compression.starts_with("gz");
  }

  std::string file(const IndexJson& json) const {
    const auto name = json.find("basename");
    if (name == json.end() || !name->is_string()) fail("a file has no basename");
    return (folder_ / require_plain_name(name->get<std::string>(), path_)).string();
  }

  void add_columns(const IndexJson& json) {
    const std::vector<std::string> names = texts(json, "column_names"), encodings = texts(json, "column_encodings");
    if (names.size() != encodings.size() || names.empty())
      fail("column_names and column_encodings differ in their lengths");
    std::vector<MdsColumn> columns;
    for (size_t c = 0; c < names.size(); ++c) columns.push_back(mds_column(names[c], encodings[c]));
    const auto is_same = [](const MdsColumn& a, const MdsColumn& b) {
      return a.column.name == b.column.name && a.encoding == b.encoding;
    };
    if (result_.shards.empty())
      result_.columns = std::move(columns);
    else if (!std::equal(columns.begin(), columns.end(), result_.columns.begin(), result_.columns.end(), is_same))
      fail("the shards have different columns");
  }

  std::string path_;
  fs::path folder_;
  MdsIndexFile result_;
};

class MdsTable final : public TableFile {
 public:
  explicit MdsTable(const std::string& index) : index_(MdsIndexParser(index).parse()), files_(paths_of(index_)) {
    for (const MdsColumn& column : index_.columns) columns_.push_back(column.column);
    for (size_t s = 0; s < index_.shards.size(); ++s) {
      first_rows_.push_back(size_);
      size_ += index_.shards[s].samples;
      if (!is_url(index)) (void)open_shard(s);  // a store is asked for a shard when it is read
    }
  }

  int64_t size() const override { return size_; }
  const std::vector<TableColumn>& columns() const override { return columns_; }
  std::string where(int64_t row) const override {
    const size_t shard = shard_of(row);
    return fmt::format("{}: sample {}", index_.shards[shard].path, row - first_rows_[shard]);
  }
  int64_t memory_bytes() const override {
    return files_.memory_bytes() + static_cast<int64_t>(index_.shards.size() * sizeof(MdsShard));
  }

  void expect(int64_t row) const override {
    const size_t shard = shard_of(row);
    const MdsShard& of = index_.shards[shard];
    const auto file = open_shard(shard);
    if (of.is_compressed) return file->expect(0, file->bytes());
    // The offsets have not been read, so the place of the sample is estimated.
    const int64_t offsets = 4 * (of.samples + 2), each = (of.bytes - std::min(of.bytes, offsets)) / of.samples;
    file->expect(0, offsets);
    file->expect(offsets + each * (row - first_rows_[shard]), each);
  }

  void read(int64_t row, std::span<const size_t> columns, std::span<TableValue> out) const override {
    thread_local std::vector<uint8_t> sample;
    thread_local std::vector<std::span<const uint8_t>> values;
    try {
      const size_t shard = shard_of(row);
      read_sample(shard, row - first_rows_[shard], sample);
      split_mds_sample(sample, index_.columns, values);
    } catch (const EnvError& error) {
      fail(row, error.what());
    }
    for (size_t i = 0; i < columns.size(); ++i) {
      try {
        read_mds_value(index_.columns[columns[i]], values[columns[i]], out[i]);
      } catch (const EnvError& error) {
        fail(row, fmt::format("'{}' {}", printable(columns_[columns[i]].name), error.what()));
      }
    }
  }

 private:
  std::shared_ptr<const InputFile> open_shard(size_t shard) const {
    const MdsShard& of = index_.shards[shard];
    auto file = files_.get(shard);
    if (!of.is_compressed && file->bytes() != of.bytes)
      throw EnvError(fmt::format("{}: has {} bytes, but its index gives {}; get the file again", file->path(),
                                 with_commas(file->bytes()), with_commas(of.bytes)));
    return file;
  }

  static std::vector<std::string> paths_of(const MdsIndexFile& index) {
    std::vector<std::string> paths;
    for (const MdsShard& shard : index.shards) paths.push_back(shard.path);
    return paths;
  }
  [[noreturn]] void fail(int64_t row, const std::string& what) const {
    throw EnvError(what.find(index_.shards[shard_of(row)].path) == 0 ? what : where(row) + ": " + what);
  }
  size_t shard_of(int64_t row) const {
    return static_cast<size_t>(std::upper_bound(first_rows_.begin(), first_rows_.end(), row) - first_rows_.begin()) - 1;
  }

  void read_sample(size_t shard, int64_t row, std::vector<uint8_t>& sample) const {
    const MdsShard& of = index_.shards[shard];
    std::shared_ptr<const CachedBlock> block;
    std::span<const uint8_t> whole;
    if (of.is_compressed) {
      block = blocks_.get(static_cast<int64_t>(shard), [&] { return inflate(shard); });
      whole = static_cast<const MdsBlock&>(*block).bytes;
    }
    const auto file = of.is_compressed ? nullptr : open_shard(shard);
    const auto read = [&](int64_t at, std::span<uint8_t> to) {
      if (file) return file->read(at, to);
      std::memcpy(to.data(), whole.data() + at, to.size());
    };
    uint32_t pair[2] = {0, 0};
    const int64_t at = 4 * (1 + row);
    if (at + 8 > of.bytes) throw EnvError("is damaged: the shard is too short for its offsets");
    read(at, {reinterpret_cast<uint8_t*>(pair), sizeof pair});
    if (pair[0] > pair[1] || pair[1] > of.bytes) throw EnvError("is damaged: the offsets exceed the shard");
    sample.resize(pair[1] - pair[0]);
    if (!sample.empty()) read(pair[0], sample);
  }

  BlockCache::Loaded inflate(size_t shard) const {
    const auto file = files_.get(shard);
    std::vector<uint8_t> packed(static_cast<size_t>(file->bytes()));
    file->read(0, packed);
    auto block = std::make_shared<MdsBlock>();
    const MdsShard& of = index_.shards[shard];
    block->bytes =
        of.is_gzip ? inflated_gzip(packed, of.bytes, file->path()) : inflated_zstd(packed, of.bytes, file->path());
    return {block, static_cast<int64_t>(block->bytes.size())};
  }

  MdsIndexFile index_;
  OpenFiles files_;
  std::vector<TableColumn> columns_;
  std::vector<int64_t> first_rows_;  ///< the first row of each shard
  int64_t size_ = 0;
  BlockCache blocks_;
};

}  // namespace

std::unique_ptr<TableFile> open_mds(const std::string& index) { return std::make_unique<MdsTable>(index); }

std::vector<std::string> mds_parts(const std::string& index) {
  std::vector<std::string> parts{index};
  for (const MdsShard& shard : MdsIndexParser(index).parse().shards) parts.push_back(shard.path);
  return parts;
}

}  // namespace trainctl
