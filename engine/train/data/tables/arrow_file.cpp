// Parquet, Arrow's file format (Feather 2) and its stream format, read by Arrow C++ through libtrainctl_arrow.so
// (arrow_interface.h).
#include "engine/train/data/tables/arrow_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/url.h"
#include "engine/planning/device_data.h"
#include "engine/train/data/mapped_file.h"
#include "engine/train/data/tables/arrow_values.h"
#include "engine/train/data/tables/block_cache.h"
#include "engine/train/files/input_file.h"

namespace trainctl {
namespace {

/// A file that is open in the library, and its bytes. Blocks refer to it, because their memory is the library's. Parts
/// of a Parquet object of a store are requested as they are needed; other objects are kept in memory.
struct ArrowHandle {
  explicit ArrowHandle(const std::string& path) {
    if (is_url(path) && shown_url(path).ends_with(".parquet"))
      object = std::make_unique<InputFile>(path);
    else
      bytes = MappedFile(path);
  }
  ~ArrowHandle() {
    if (file != nullptr) arrow_library().close(file);
  }
  ArrowHandle(const ArrowHandle&) = delete;
  ArrowHandle& operator=(const ArrowHandle&) = delete;

  TrainctlArrowBytes source() {
    const auto size = static_cast<int64_t>(bytes.bytes().size());
    if (object == nullptr) return {bytes.bytes().data(), size, nullptr, nullptr, nullptr};
    return {nullptr, object->bytes(), object.get(), read_object_part, expect_object_part};
  }

  std::unique_ptr<InputFile> object;  ///< null: `bytes` has the file
  MappedFile bytes;
  void* file = nullptr;

 private:
  static int read_object_part(void* state, int64_t at, int64_t count, uint8_t* to, TrainctlArrowError error) {
    try {
      static_cast<InputFile*>(state)->read(at, {to, static_cast<size_t>(count)});
      return 0;
    } catch (const std::exception& caught) {
      const std::string_view text(caught.what());
      error.text[text.copy(error.text, static_cast<size_t>(error.bytes - 1))] = 0;
      return 1;
    }
  }
  static void expect_object_part(void* state, int64_t at, int64_t count) {
    static_cast<InputFile*>(state)->expect(at, count);
  }
};

/// The chosen columns of one group.
struct ArrowGroup final : public CachedBlock {
  explicit ArrowGroup(std::shared_ptr<const ArrowHandle> of) : handle(std::move(of)) {}
  ~ArrowGroup() override {
    if (array.release != nullptr) array.release(&array);
  }
  std::shared_ptr<const ArrowHandle> handle;
  ArrowArray array{};
};

/// Releases the schema also if the constructor that holds it throws.
struct OwnedArrowSchema : ArrowSchema {
  OwnedArrowSchema() : ArrowSchema{} {}
  ~OwnedArrowSchema() {
    if (release != nullptr) release(this);
  }
  OwnedArrowSchema(const OwnedArrowSchema&) = delete;
  OwnedArrowSchema& operator=(const OwnedArrowSchema&) = delete;
};

class ArrowErrorText {
 public:
  TrainctlArrowError receiver() { return {text_.data(), static_cast<int64_t>(text_.size())}; }
  /// Arrow's message without its lines of context.
  std::string text() const {
    std::string first(text_.data());
    return printable(first.substr(0, first.find('\n')));
  }

 private:
  std::array<char, 2048> text_{};
};

/// The names of classes in the metadata that Hugging Face datasets write.
void add_class_names(const ArrowSchema& schema, std::vector<TableColumn>& columns) {
  const std::string text = arrow_metadata(schema, "huggingface");
  if (text.empty()) return;
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const nlohmann::json::json_pointer at("/info/features");
  if (json.is_discarded() || !json.contains(at) || !json[at].is_object()) return;
  for (TableColumn& column : columns) {
    const auto feature = json[at].find(column.name);
    if (feature == json[at].end() || !feature->is_object()) continue;
    const auto names = feature->find("names");
    if (names == feature->end() || !names->is_array()) continue;
    for (const auto& name : *names)
      if (name.is_string()) column.classes.push_back(name.get<std::string>());
  }
}

class ArrowTable final : public TableFile {
 public:
  explicit ArrowTable(const std::string& path) : path_(shown_url(path)), handle_(std::make_shared<ArrowHandle>(path)) {
    const TrainctlArrow& arrow = arrow_library();
    const TrainctlArrowBytes bytes = handle_->source();
    if (bytes.size == 0) throw EnvError(path_ + ": is empty");
    ArrowErrorText error;
    handle_->file = arrow.open(&bytes, most_decoded_bytes(), error.receiver());
    if (handle_->file == nullptr) fail(error);
    if (arrow.schema(handle_->file, &schema_, error.receiver()) != 0) fail(error);
    for (int64_t c = 0; c < schema_.n_children; ++c) columns_.push_back(arrow_column(*schema_.children[c]));
    add_class_names(schema_, columns_);
    for (int64_t group = 0; group < arrow.groups(handle_->file); ++group) {
      first_rows_.push_back(size_);
      const int64_t rows = arrow.group_rows(handle_->file, group);
      if (rows < 0 || rows > (int64_t{1} << 40))
        throw EnvError(fmt::format("{}: is damaged: group {} has {} rows", path_, group, rows));
      size_ += rows;
    }
    expected_ = std::vector<std::atomic<bool>>(first_rows_.size());
    std::vector<size_t> all(columns_.size());
    std::iota(all.begin(), all.end(), size_t{0});
    choose(all);
  }
  int64_t size() const override { return size_; }
  const std::vector<TableColumn>& columns() const override { return columns_; }
  std::string where(int64_t row) const override { return fmt::format("{}: row {}", path_, row); }
  int64_t memory_bytes() const override { return static_cast<int64_t>(first_rows_.size() * sizeof(int64_t)); }

  void choose(const std::vector<size_t>& columns) override {
    chosen_.assign(columns.begin(), columns.end());
    std::sort(chosen_.begin(), chosen_.end());
    chosen_.erase(std::unique(chosen_.begin(), chosen_.end()), chosen_.end());
  }

  void expect(int64_t row) const override {
    if (handle_->object == nullptr || chosen_.empty()) return;
    const int64_t group = group_of(row);
    if (expected_[static_cast<size_t>(group)].exchange(true)) return;
    arrow_library().expect(handle_->file, group, chosen_.data(), static_cast<int32_t>(chosen_.size()));
  }

  void read(int64_t row, std::span<const size_t> columns, std::span<TableValue> out) const override {
    const auto [group, at] = place_of(row);
    for (size_t i = 0; i < columns.size(); ++i) {
      const size_t c = columns[i];
      try {
        read_arrow_value(*schema_.children[c], array_of(*group, c), at, columns_[c], out[i]);
      } catch (const EnvError& error) {
        throw_at(row, c, error);
      }
    }
  }

  std::string json(int64_t row, const std::vector<std::string>& names) const override {
    if (chosen_.empty()) return "{}";
    const auto [group, at] = place_of(row);
    nlohmann::ordered_json object = nlohmann::ordered_json::object();
    for (const int32_t number : chosen_) {
      const auto c = static_cast<size_t>(number);
      if (!names.empty() && std::find(names.begin(), names.end(), columns_[c].name) == names.end()) continue;
      try {
        object[columns_[c].name] = arrow_json(*schema_.children[c], array_of(*group, c), at);
      } catch (const EnvError& error) {
        throw_at(row, c, error);
      }
    }
    try {
      return object.dump();
    } catch (const nlohmann::json::exception&) {
      throw EnvError(where(row) + ": contains bytes that are not UTF-8 text");
    }
  }

 private:
  /// Memory of one file's decoded groups: a quarter of the host's.
  static int64_t most_decoded_bytes() { return std::max(int64_t{1} << 30, 4 * most_cached_bytes()); }

  [[noreturn]] void fail(const ArrowErrorText& error) const {
    throw EnvError(path_ + ": cannot be read: " + error.text());
  }

  [[noreturn]] void throw_at(int64_t row, size_t column, const EnvError& error) const {
    throw EnvError(fmt::format("{}: '{}' {}", where(row), printable(columns_[column].name), error.what()));
  }

  const ArrowArray& array_of(const ArrowGroup& group, size_t column) const {
    const auto found = std::lower_bound(chosen_.begin(), chosen_.end(), static_cast<int32_t>(column));
    check(found != chosen_.end() && *found == static_cast<int32_t>(column), "only chosen columns are read");
    return *group.array.children[found - chosen_.begin()];
  }

  int64_t group_of(int64_t row) const {
    return std::upper_bound(first_rows_.begin(), first_rows_.end(), row) - first_rows_.begin() - 1;
  }

  std::pair<std::shared_ptr<const ArrowGroup>, int64_t> place_of(int64_t row) const {
    const int64_t group = group_of(row);
    auto block = blocks_.get(group, [&] { return load(group); });
    return {std::static_pointer_cast<const ArrowGroup>(std::move(block)),
            row - first_rows_[static_cast<size_t>(group)]};
  }

  BlockCache::Loaded load(int64_t group) const {
    auto block = std::make_shared<ArrowGroup>(handle_);
    ArrowErrorText error;
    int64_t bytes = 0;
    if (arrow_library().read(handle_->file, group, chosen_.data(), static_cast<int32_t>(chosen_.size()), &block->array,
                             &bytes, error.receiver()) != 0)
      throw EnvError(fmt::format("{}: group {} cannot be read: {}", path_, group, error.text()));
    expected_[static_cast<size_t>(group)] = false;
    return {std::move(block), bytes};
  }

  std::string path_;
  std::shared_ptr<ArrowHandle> handle_;
  OwnedArrowSchema schema_;
  std::vector<TableColumn> columns_;
  std::vector<int64_t> first_rows_;  ///< the first row of each group
  int64_t size_ = 0;
  std::vector<int32_t> chosen_;                      ///< ascending
  mutable std::vector<std::atomic<bool>> expected_;  ///< groups that have been requested and not read
  BlockCache blocks_;
};

}  // namespace

std::unique_ptr<TableFile> open_arrow_file(const std::string& path) { return std::make_unique<ArrowTable>(path); }

}  // namespace trainctl
