// Writes the rows of tables to a file of another format, which its name determines.
#include "engine/train/data/tables/table_writer.h"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/train/data/tables/part_file.h"
#include "engine/train/data/token_writer.h"

namespace trainctl {
namespace {

struct WriterFormat {
  const char* name;  ///< the file's name or ending
  std::unique_ptr<TableWriter> (*make)(const TableWriterOptions& options);
};
constexpr WriterFormat kWriterFormats[] = {
    {"*.jsonl", write_json_lines},
    {"*.jsonl.gz", write_json_lines},
    {"*.jsonl.zst", write_json_lines},
    {"*.csv", write_csv},
    {"*.parquet", write_arrow_file},
    {"*.arrow", write_arrow_file},
    {"state.json", write_hugging_face},
    {"*.npz", write_npz},
    {"*.h5", write_hdf5},
    {"*.hdf5", write_hdf5},
    {"*.tar", write_tar},
    {"*.tfrecord", write_tfrecord},
    {"index.json", write_mds},
    {"data.mdb", write_lmdb},
    {"*.idx", write_megatron},
    {"*.bin", write_token_column},
};

class JsonLinesWriter final : public TableWriter {
 public:
  explicit JsonLinesWriter(const TableWriterOptions& options) : file_(options.path, options.replace) {
    for (const TableColumn& column : options.columns) names_.push_back(column.name);
    packed_.resize(ZSTD_CStreamOutSize());
    if (options.path.ends_with(".zst")) stream_ = ZSTD_createCCtx();
    is_gzip_ = options.path.ends_with(".gz");
    constexpr int kGzip = 16 + MAX_WBITS, kMemoryLevel = 8;
    if (is_gzip_)
      check(deflateInit2(&gzip_, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzip, kMemoryLevel, Z_DEFAULT_STRATEGY) == Z_OK,
            "deflateInit2 needs only memory");
  }
  ~JsonLinesWriter() override {
    ZSTD_freeCCtx(stream_);
    if (is_gzip_) deflateEnd(&gzip_);
  }
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
    if (is_gzip_) {
      flush_gzip(is_end);
    } else if (stream_ == nullptr) {
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

  void flush_gzip(bool is_end) {
    gzip_.next_in = reinterpret_cast<uint8_t*>(text_.data());
    gzip_.avail_in = static_cast<unsigned>(text_.size());
    do {
      gzip_.next_out = reinterpret_cast<uint8_t*>(packed_.data());
      gzip_.avail_out = static_cast<unsigned>(packed_.size());
      deflate(&gzip_, is_end ? Z_FINISH : Z_NO_FLUSH);
      file_.write({reinterpret_cast<const uint8_t*>(packed_.data()), packed_.size() - gzip_.avail_out});
    } while (gzip_.avail_out == 0);
  }

  PartFile file_;
  std::vector<std::string> names_;
  std::string text_;
  ZSTD_CCtx* stream_ = nullptr;
  bool is_gzip_ = false;
  z_stream gzip_{};
  std::vector<char> packed_;
};

/// Numbers and texts with a header, quoted as in RFC 4180. A null is an empty field.
class CsvWriter final : public TableWriter {
 public:
  explicit CsvWriter(const TableWriterOptions& options)
      : columns_(options.columns), file_(options.path, options.replace) {
    std::string header;
    for (const TableColumn& column : columns_) {
      if (column.kind == ColumnKind::nested || column.kind == ColumnKind::bytes || !column.shape.empty())
        throw EnvError(
            fmt::format("the column '{}' is {}, but csv files take numbers and texts; leave it out with "
                        "--columns",
                        printable(column.name), column.type_text()));
      header += (header.empty() ? "" : ",") + quoted(column.name);
    }
    file_.write(header + "\n");
  }
  void write(const TableFile& from, int64_t row, const std::vector<size_t>& columns) override {
    values_.resize(columns.size());
    from.read(row, columns, values_);
    std::string line;
    for (size_t i = 0; i < columns.size(); ++i) {
      if (i > 0) line += ',';
      if (values_[i].is_null) continue;
      line += columns_[i].kind == ColumnKind::number ? number(columns_[i].element, values_[i].bytes)
                                                     : quoted(values_[i].text());
    }
    file_.write(line + "\n");
  }
  void finish() override { file_.finish(); }

 private:
  static std::string number(StoredElement element, const std::vector<uint8_t>& bytes) {
    if (element == StoredElement::i64) {
      int64_t value = 0;
      std::memcpy(&value, bytes.data(), sizeof value);
      return std::to_string(value);
    }
    const double value = stored_as_double(element, bytes.data());
    const bool is_float = element_type(element) == ElementType::f32 && element != StoredElement::f64;
    return is_float ? fmt::format("{}", static_cast<float>(value)) : fmt::format("{}", value);
  }
  static std::string quoted(std::string_view text) {
    if (!text.empty() && text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
    std::string out = "\"";
    for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
    return out + "\"";
  }

  std::vector<TableColumn> columns_;
  PartFile file_;
  std::vector<TableValue> values_;
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

std::unique_ptr<TableWriter> write_csv(const TableWriterOptions& options) {
  return std::make_unique<CsvWriter>(options);
}

std::unique_ptr<TableWriter> write_token_column(const TableWriterOptions& options) {
  return std::make_unique<TokenColumnWriter>(options);
}

std::string table_writer_formats() {
  std::string text;
  for (const WriterFormat& format : kWriterFormats) text += (text.empty() ? "" : ", ") + std::string(format.name);
  return text;
}

void refuse_nested(const TableColumn& column) {
  if (column.kind == ColumnKind::nested)
    throw EnvError("the column '" + printable(column.name) +
                   "' is nested, which is only written to JSON Lines; leave it out with --columns");
}

void make_folder_of(const std::string& index) {
  const std::filesystem::path folder = std::filesystem::path(index).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) throw EnvError("cannot write " + folder.string() + ": " + error.message());
}

std::unique_ptr<TableWriter> make_table_writer(const TableWriterOptions& options) {
  if (options.columns.empty()) throw EnvError("there are no columns to write");
  for (const WriterFormat& format : kWriterFormats)
    if (glob_match(format.name, std::filesystem::path(options.path).filename().string())) return format.make(options);
  throw EnvError(printable(options.path) + ": the name has no format that trainctl writes: " + table_writer_formats());
}

}  // namespace trainctl
