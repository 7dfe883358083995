// The offsets of the rows of a table: 4 bytes per row.
#include "engine/train/data/sources/csv_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/train/data/sources/csv_text.h"

namespace trainctl {
namespace {

constexpr int64_t kReadBytes = 1 << 20;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// Gives access to the file's text from a place on, and reads only as much of it as is needed.
class Window {
 public:
  explicit Window(const InputFile& file) : file_(file) {}

  std::string_view text() const { return std::string_view(text_).substr(begin_); }
  bool reaches_end() const { return read_ == file_.bytes(); }
  int64_t at() const { return read_ - static_cast<int64_t>(text().size()); }
  void skip(size_t bytes) { begin_ += bytes; }
  void read_more() {
    text_.erase(0, begin_);
    begin_ = 0;
    const size_t kept = text_.size();
    text_.resize(kept + static_cast<size_t>(std::min(kReadBytes, file_.bytes() - read_)));
    file_.read(read_, {reinterpret_cast<uint8_t*>(text_.data()) + kept, text_.size() - kept});
    read_ += static_cast<int64_t>(text_.size() - kept);
  }

 private:
  const InputFile& file_;
  std::string text_;
  size_t begin_ = 0;
  int64_t read_ = 0;
};

int64_t count_lines(std::string_view text) { return std::count(text.begin(), text.end(), '\n'); }

}  // namespace

CsvIndex::CsvIndex(const InputFile& file, char delimiter, bool header, const Visit& visit) {
  Window window(file);
  window.read_more();
  if (window.text().starts_with(kByteOrderMark)) window.skip(kByteOrderMark.size());
  int64_t line = 1;
  bool is_header = header;
  while (!window.text().empty() || !window.reaches_end()) {
    const std::optional<size_t> bytes = row_bytes(window.text(), delimiter, window.reaches_end());
    const auto most = static_cast<size_t>(kMostRowBytes);
    if (bytes ? *bytes > most : window.text().size() > most || window.reaches_end()) {
      const bool is_open = !bytes && window.reaches_end();
      throw EnvError(fmt::format("{}:{}: {}", file.path(), line,
                                 is_open ? "a quote that starts in this row is never closed"
                                         : "the row is longer than 1 MiB; is a quote missing?"));
    }
    if (!bytes) {
      window.read_more();
      continue;
    }
    const std::string_view row = window.text().substr(0, *bytes);
    if (!is_blank_row(row)) {
      visit(row, line);
      if (!is_header) add(window.at(), line);
      is_header = false;
    }
    line += count_lines(row);
    window.skip(*bytes);
    end_ = window.at();
  }
  blocks_.shrink_to_fit();
  offsets_.shrink_to_fit();
}

void CsvIndex::add(int64_t at, int64_t line) {
  if (rows() % kBlockRows == 0) blocks_.push_back({at, line});
  const int64_t offset = at - blocks_.back().at;
  // The offset can become this large only because of blank lines, which belong to no row.
  if (offset > std::numeric_limits<uint32_t>::max()) throw EnvError("4 GiB of blank lines in a table");
  offsets_.push_back(static_cast<uint32_t>(offset));
}

int64_t CsvIndex::offset(int64_t row) const {
  if (row == rows()) return end_;
  return blocks_[static_cast<size_t>(row / kBlockRows)].at + offsets_[static_cast<size_t>(row)];
}

std::string CsvIndex::read(const InputFile& file, int64_t row) const {
  check(row >= 0 && row < rows(), "a row of the table");
  const int64_t begin = offset(row);
  std::string text(static_cast<size_t>(std::min(offset(row + 1) - begin, kMostRowBytes)), '\0');
  file.read(begin, {reinterpret_cast<uint8_t*>(text.data()), text.size()});
  return text;
}

int64_t CsvIndex::line(const InputFile& file, int64_t row) const {
  const Block& block = blocks_[static_cast<size_t>(row / kBlockRows)];
  const int64_t end = offset(row);
  int64_t line = block.line;
  std::string text;
  for (int64_t at = block.at; at < end; at += static_cast<int64_t>(text.size())) {
    text.resize(static_cast<size_t>(std::min(kReadBytes, end - at)));
    file.read(at, {reinterpret_cast<uint8_t*>(text.data()), text.size()});
    line += count_lines(text);
  }
  return line;
}

int64_t CsvIndex::memory_bytes() const {
  return static_cast<int64_t>(blocks_.capacity() * sizeof(Block) + offsets_.capacity() * sizeof(uint32_t));
}

}  // namespace trainctl
