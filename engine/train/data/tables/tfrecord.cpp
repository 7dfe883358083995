// TFRecord files. The places of the records are found when the file is opened; a record's checksum is compared when it
// is read.
//
//   record := u64 bytes  u32 masked_crc(bytes)  message  u32 masked_crc(message)
//
//   feature                column
//   integers, floats       numbers, [n]; a single one is a scalar
//   bytes                  text if the first value is UTF-8 text, otherwise bytes
//   several byte strings   nested
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/base/url.h"
#include "engine/train/data/inflated_file.h"
#include "engine/train/data/tables/crc32c.h"
#include "engine/train/data/tables/formats.h"
#include "engine/train/data/tables/plain_text.h"
#include "engine/train/data/tables/tf_example.h"
#include "engine/train/files/input_file.h"

namespace trainctl {
namespace {

constexpr int64_t kRecordHeaderBytes = 12, kRecordFooterBytes = 4;

class TfRecords final : public TableFile {
 public:
  explicit TfRecords(const std::string& path) : path_(shown_url(path)) {
    file_ = std::make_unique<InputFile>(path);
    if (path_.ends_with(".gz") || is_gzip(*file_)) {
      text_ = read_inflated(path, file_->bytes());
      file_.reset();
    }
    index();
    if (size() == 0) return;
    std::vector<uint8_t> message;
    for (const TfFeature& feature : example(0, message)) add_column(feature);
  }

  int64_t size() const override { return static_cast<int64_t>(places_.size()); }
  const std::vector<TableColumn>& columns() const override { return columns_; }
  std::string where(int64_t row) const override { return fmt::format("{}: record {}", path_, row); }
  void expect(int64_t row) const override {
    if (file_) file_->expect(place(row), bytes_of(row));
  }
  int64_t memory_bytes() const override {
    return static_cast<int64_t>(text_.size() + places_.size() * sizeof(int64_t));
  }

  void read(int64_t row, std::span<const size_t> columns, std::span<TableValue> out) const override {
    thread_local std::vector<uint8_t> message;
    const std::vector<TfFeature> features = example(row, message);
    for (size_t i = 0; i < columns.size(); ++i) {
      const TableColumn& column = columns_[columns[i]];
      const auto found = std::find_if(features.begin(), features.end(),
                                      [&](const TfFeature& feature) { return feature.name == column.name; });
      out[i].is_null = true;
      out[i].shape.clear();
      out[i].bytes.clear();
      if (found != features.end() && found->kind != TfKind::none) read_feature_value(row, column, *found, out[i]);
    }
  }

 private:
  /// TensorFlow compresses files without changing their names.
  static bool is_gzip(const InputFile& file) {
    uint8_t start[3] = {0, 0, 0};
    if (file.bytes() >= kRecordHeaderBytes) file.read(0, start);
    return start[0] == 0x1f && start[1] == 0x8b && start[2] == 8;
  }

  int64_t bytes() const { return file_ ? file_->bytes() : static_cast<int64_t>(text_.size()); }
  int64_t place(int64_t row) const { return places_[static_cast<size_t>(row)]; }
  int64_t bytes_of(int64_t row) const {
    const int64_t end = row + 1 < size() ? place(row + 1) - kRecordHeaderBytes : bytes();
    return end - place(row) - kRecordFooterBytes;
  }
  void load(int64_t at, std::span<uint8_t> to) const {
    if (file_) return file_->read(at, to);
    std::memcpy(to.data(), text_.data() + at, to.size());
  }
  [[noreturn]] void fail_at(int64_t at, const std::string& what) const {
    throw EnvError(fmt::format("{}: byte {}: {}; get the file again", path_, with_commas(at), what));
  }

  void index() {
    for (int64_t at = 0; at < bytes();) {
      uint8_t header[kRecordHeaderBytes];
      if (bytes() - at < kRecordHeaderBytes + kRecordFooterBytes)
        fail_at(at, "expected a record, found the end of the file");
      load(at, header);
      uint64_t length = 0;
      uint32_t crc = 0;
      std::memcpy(&length, header, sizeof length);
      std::memcpy(&crc, header + sizeof length, sizeof crc);
      if (tf_checksum({header, sizeof length}) != crc)
        fail_at(at,
                "the checksum of a record's length is wrong, or the file is compressed by something other than gzip");
      if (length > static_cast<uint64_t>(bytes() - at - kRecordHeaderBytes - kRecordFooterBytes))
        fail_at(at, fmt::format("a record of {} bytes exceeds the file", length));
      places_.push_back(at + kRecordHeaderBytes);
      at += kRecordHeaderBytes + static_cast<int64_t>(length) + kRecordFooterBytes;
    }
  }

  std::vector<TfFeature> example(int64_t row, std::vector<uint8_t>& message) const {
    const auto count = static_cast<size_t>(bytes_of(row));
    message.resize(count + kRecordFooterBytes);
    load(place(row), message);
    uint32_t crc = 0;
    std::memcpy(&crc, message.data() + count, sizeof crc);
    if (tf_checksum(std::span(message).first(count)) != crc)
      throw EnvError(where(row) + ": its checksum is wrong; get the file again");
    try {
      return parse_tf_example(std::span<const uint8_t>(message).first(count));
    } catch (const EnvError& error) {
      throw EnvError(where(row) + ": " + error.what());
    }
  }

  void add_column(const TfFeature& feature) {
    TableColumn column{std::string(feature.name), ColumnKind::nested};
    if (feature.kind == TfKind::integers || feature.kind == TfKind::floats) {
      column.kind = ColumnKind::number;
      column.element = feature.kind == TfKind::integers ? StoredElement::i64 : StoredElement::f32;
      if (feature.size() != 1) column.shape = {-1};
    } else if (feature.kind == TfKind::bytes && feature.bytes.size() == 1) {
      column.kind = is_plain_text(feature.bytes[0]) ? ColumnKind::text : ColumnKind::bytes;
    }
    columns_.push_back(std::move(column));
  }

  void read_feature_value(int64_t row, const TableColumn& column, const TfFeature& feature, TableValue& out) const {
    const auto fail = [&](const std::string& what) {
      throw EnvError(fmt::format("{}: '{}' {}", where(row), printable(column.name), what));
    };
    if (column.kind == ColumnKind::nested) fail("is a list of strings or bytes, which is not supported");
    if (column.kind == ColumnKind::number) {
      const bool integers = column.element == StoredElement::i64;
      if (feature.kind != (integers ? TfKind::integers : TfKind::floats))
        fail("has a different type from that in the first record");
      if (column.shape.empty() && feature.size() != 1)
        fail(fmt::format("has {} values, but 1 in the first record", feature.size()));
      if (!column.shape.empty()) out.shape = {static_cast<int64_t>(feature.size())};
      const auto* from = integers ? reinterpret_cast<const uint8_t*>(feature.integers.data())
                                  : reinterpret_cast<const uint8_t*>(feature.floats.data());
      out.bytes.assign(from, from + feature.size() * (integers ? sizeof(int64_t) : sizeof(float)));
      out.is_null = false;
      return;
    }
    if (feature.kind != TfKind::bytes || feature.bytes.size() != 1)
      fail("has a different type from that in the first record");
    out.set_bytes(feature.bytes[0]);
  }

  std::string path_;
  std::unique_ptr<InputFile> file_;  ///< null if the content is in text_
  std::string text_;                 ///< the content of a compressed file
  std::vector<int64_t> places_;      ///< where each message begins
  std::vector<TableColumn> columns_;
};

}  // namespace

std::unique_ptr<TableFile> open_tfrecord(const std::string& path) { return std::make_unique<TfRecords>(path); }

}  // namespace trainctl
