// Writes a column of tokens as a data set of Megatron-LM: NAME.idx and NAME.bin (megatron.h).
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>

#include "engine/base/error.h"
#include "engine/train/data/tables/part_file.h"
#include "engine/train/data/tables/table_writer.h"
#include "engine/train/files/protocol_buffer.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

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

std::unique_ptr<TableWriter> write_megatron(const TableWriterOptions& options) {
  return std::make_unique<MegatronWriter>(options);
}

}  // namespace trainctl
