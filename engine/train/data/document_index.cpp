// The documents of files, to be read in any order: the lines of JSON Lines, the rows of other tables (table_file.h), or
// whole text files.
#include "engine/train/data/document_index.h"

#include <algorithm>
#include <span>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/train/data/documents.h"
#include "engine/train/data/inflated_file.h"
#include "engine/train/data/tables/table_file.h"
#include "engine/train/data/text_bytes.h"

namespace trainctl {
namespace {

std::string read_index_part(const InputFile& file, int64_t at, int64_t bytes) {
  std::string text(static_cast<size_t>(bytes), '\0');
  file.read(at, {reinterpret_cast<uint8_t*>(text.data()), text.size()});
  return text;
}

std::vector<uint8_t> start_of(const InputFile& file) {
  std::vector<uint8_t> start(std::min(static_cast<size_t>(file.bytes()), kTextStartBytes));
  file.read(0, start);
  return start;
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\n") == std::string_view::npos; }

}  // namespace

DocumentIndex::DocumentIndex(const std::vector<std::string>& files, std::vector<std::string> columns)
    : open_(files), columns_(std::move(columns)), files_(files.size()) {
  for (size_t f = 0; f < files.size(); ++f) add_file(f);
}

void DocumentIndex::add_rows(size_t file) {
  File& one = files_[file];
  one.is_json = true;
  one.table = open_table_file(open_.address(file));
  std::vector<size_t> chosen;
  for (size_t c = 0; c < one.table->columns().size(); ++c)
    if (columns_.empty() || std::find(columns_.begin(), columns_.end(), one.table->columns()[c].name) != columns_.end())
      chosen.push_back(c);
  one.table->choose(chosen);
  for (int64_t row = 0; row < one.table->size(); ++row) places_.push_back({file, row, 0, 0});
}

void DocumentIndex::add_file(size_t file) {
  if (!is_json_lines(open_.path(file)) && is_table_file(open_.path(file))) return add_rows(file);
  const auto open = open_.get(file);
  File& one = files_[file];
  one.is_json = is_json_lines(open->path());
  one.is_compressed = is_compressed_name(open->path());
  if (one.is_compressed)
    one.text = read_inflated(open_.address(file), open->bytes());
  else
    require_text(start_of(*open), open->path());
  if (one.is_json) return add_lines(file);
  const int64_t bytes = one.is_compressed ? static_cast<int64_t>(one.text.size()) : open->bytes();
  if (bytes > 0) places_.push_back({file, 0, bytes, 0});
}

/// Adds the place of each line of a file that is not blank.
void DocumentIndex::add_lines(size_t file) {
  constexpr int64_t kAtOnce = int64_t{4} << 20;
  const auto open = open_.get(file);
  const bool in_memory = files_[file].is_compressed;
  const int64_t size = in_memory ? static_cast<int64_t>(files_[file].text.size()) : open->bytes();
  int64_t begin = 0, line = 0;
  bool blank = true;
  std::string buffer;
  const auto end_line = [&](int64_t end) {
    ++line;
    if (!blank) places_.push_back({file, begin, end - begin, line});
    begin = end + 1;
    blank = true;
  };
  for (int64_t at = 0; at < size; at += kAtOnce) {
    const int64_t bytes = std::min(kAtOnce, size - at);
    if (!in_memory) buffer = read_index_part(*open, at, bytes);
    const std::string_view part =
        in_memory ? std::string_view(files_[file].text).substr(static_cast<size_t>(at), static_cast<size_t>(bytes))
                  : buffer;
    for (size_t from = 0; from < part.size();) {
      const size_t end = std::min(part.find('\n', from), part.size());
      blank = blank && is_blank(part.substr(from, end - from));
      if (end < part.size()) end_line(at + static_cast<int64_t>(end));
      from = end + 1;
    }
  }
  if (begin < size) end_line(size);
}

std::string DocumentIndex::read(int64_t document) const {
  const Place& p = place(document);
  const File& file = files_[p.file];
  if (file.table) return file.table->json(p.at, columns_);
  if (file.is_compressed) return file.text.substr(static_cast<size_t>(p.at), static_cast<size_t>(p.bytes));
  return read_index_part(*open_.get(p.file), p.at, p.bytes);
}

void DocumentIndex::expect(int64_t document) const {
  const Place& p = place(document);
  if (files_[p.file].table) return files_[p.file].table->expect(p.at);
  if (!files_[p.file].is_compressed) open_.get(p.file)->expect(p.at, p.bytes);
}

std::string DocumentIndex::where(int64_t document) const {
  const Place& p = place(document);
  if (files_[p.file].table) return files_[p.file].table->where(p.at);
  return open_.path(p.file) + (p.line > 0 ? ":" + std::to_string(p.line) : "");
}

int64_t DocumentIndex::memory_bytes() const {
  int64_t bytes = open_.memory_bytes() + static_cast<int64_t>(places_.size() * sizeof(Place));
  for (const File& file : files_)
    bytes += static_cast<int64_t>(file.text.size()) + (file.table ? file.table->memory_bytes() : 0);
  return bytes;
}

}  // namespace trainctl
