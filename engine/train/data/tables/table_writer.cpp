// See the header.
#include "engine/train/data/tables/table_writer.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/train/data/tables/part_file.h"
#include "engine/train/data/token_writer.h"

namespace trainctl {
namespace {

struct WriterFormat {
  const char* suffix;
  std::unique_ptr<TableWriter> (*make)(const TableWriterOptions& options);
};
constexpr WriterFormat kWriterFormats[] = {
    {".jsonl", write_json_lines},
    {".jsonl.zst", write_json_lines},
    {".parquet", write_arrow_file},
    {".arrow", write_arrow_file},
    {".npz", write_npz},
    {".tar", write_tar},
    {".bin", write_token_column},
};

class JsonLinesWriter final : public TableWriter {
 public:
  explicit JsonLinesWriter(const TableWriterOptions& options) : file_(options.path, options.replace) {
    for (const TableColumn& column : options.columns) names_.push_back(column.name);
    if (!options.path.ends_with(".zst")) return;
    stream_ = ZSTD_createCCtx();
    packed_.resize(ZSTD_CStreamOutSize());
  }
  ~JsonLinesWriter() override { ZSTD_freeCCtx(stream_); }
  JsonLinesWriter(const JsonLinesWriter&) = delete;
  JsonLinesWriter& operator=(const JsonLinesWriter&) = delete;

  void write(const TableFile& from, int64_t row, const std::vector<size_t>&) override {
    text_ += from.json(row, names_);
    text_ += '\n';
    constexpr size_t kAtOnce = size_t{1} << 20;
    if (text_.size() >= kAtOnce) flush(false);
  }
  void finish() override {
    flush(true);
    file_.finish();
  }

 private:
  void flush(bool is_end) {
    if (stream_ == nullptr) {
      file_.write(text_);
    } else {
      ZSTD_inBuffer in{text_.data(), text_.size(), 0};
      for (size_t left = 1; left != 0;) {
        ZSTD_outBuffer out{packed_.data(), packed_.size(), 0};
        left = ZSTD_compressStream2(stream_, &out, &in, is_end ? ZSTD_e_end : ZSTD_e_continue);
        check(ZSTD_isError(left) == 0, "zstd compresses any text");
        file_.write({reinterpret_cast<const uint8_t*>(packed_.data()), out.pos});
        if (!is_end && in.pos == in.size) break;
      }
    }
    text_.clear();
  }

  PartFile file_;
  std::vector<std::string> names_;
  std::string text_;
  ZSTD_CCtx* stream_ = nullptr;
  std::vector<char> packed_;
};

/// The tokens of a column, as integers or lists of them. The type of the file is that of the largest token, so the rows
/// are kept until the end.
class TokenColumnWriter final : public TableWriter {
 public:
  explicit TokenColumnWriter(const TableWriterOptions& options) : options_(options) {
    if (options.columns.size() != 1 || options.columns[0].kind != ColumnKind::number)
      throw EnvError("a file of tokens takes one column of integers; choose it with --columns NAME");
  }
  void write(const TableFile& from, int64_t row, const std::vector<size_t>& columns) override {
    TableValue value;
    from.read(row, columns, std::span(&value, 1));
    if (value.is_null) throw EnvError(from.where(row) + ": the tokens are null");
    const StoredElement element = options_.columns[0].element;
    for (size_t at = 0; at < value.bytes.size(); at += static_cast<size_t>(byte_size(element))) {
      const double token = stored_as_double(element, value.bytes.data() + at);
      if (!(token >= 0 && token <= std::numeric_limits<int32_t>::max() && std::trunc(token) == token))
        throw EnvError(fmt::format("{}: {} is not a token", from.where(row), token));
      tokens_.push_back(static_cast<int32_t>(token));
    }
  }
  void finish() override {
    if (tokens_.empty()) throw EnvError("the input has no tokens; " + options_.path + " was not written");
    const bool is_small = *std::max_element(tokens_.begin(), tokens_.end()) <= std::numeric_limits<uint16_t>::max();
    TokenWriter writer(options_.path, is_small ? TokenType::u16 : TokenType::i32, true, options_.replace);
    writer.write_tokens(tokens_);
    writer.finish();
  }

 private:
  TableWriterOptions options_;
  std::vector<int32_t> tokens_;
};

}  // namespace

std::unique_ptr<TableWriter> write_json_lines(const TableWriterOptions& options) {
  return std::make_unique<JsonLinesWriter>(options);
}

std::unique_ptr<TableWriter> write_token_column(const TableWriterOptions& options) {
  return std::make_unique<TokenColumnWriter>(options);
}

std::string table_writer_formats() {
  std::string text;
  for (const WriterFormat& format : kWriterFormats) text += (text.empty() ? "*" : ", *") + std::string(format.suffix);
  return text;
}

std::unique_ptr<TableWriter> make_table_writer(const TableWriterOptions& options) {
  if (options.columns.empty()) throw EnvError("there are no columns to write");
  for (const WriterFormat& format : kWriterFormats)
    if (options.path.ends_with(format.suffix)) return format.make(options);
  throw EnvError(printable(options.path) + ": the name has no format that trainctl writes: " + table_writer_formats());
}

}  // namespace trainctl
