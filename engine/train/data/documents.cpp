// Reads the documents of files: a whole text file, each of its lines, or a field of each line of JSON Lines or of each
// row of another table (table_file.h).
#include "engine/train/data/documents.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/url.h"
#include "engine/train/data/inflated_file.h"
#include "engine/train/data/tables/table_file.h"

namespace trainctl {

struct DocumentReader::File {
  explicit File(const std::string& path) : file(path), name(file.name()) {}

  /// Appends bytes to `rest`. Returns false at the end of the file.
  bool fill() {
    std::array<char, 1 << 16> buffer;
    const size_t count = file.read(buffer);
    rest.append(buffer.data(), count);
    return count > 0;
  }

  InflatedFile file;
  std::string name, rest;
  size_t at = 0;  ///< offset of the next line in `rest`
  int64_t line = 0;
};

namespace {

/// Reads the next line without its end. Returns false at the end of the file.
template <class File>
bool next_line(File& file, std::string& line) {
  size_t from = file.at;
  for (;;) {
    const size_t end = file.rest.find('\n', from);
    if (end != std::string::npos) {
      line = file.rest.substr(file.at, end - file.at);
      file.at = end + 1;
      break;
    }
    from = file.rest.size() - file.at;
    file.rest.erase(0, std::exchange(file.at, 0));
    if (file.fill()) continue;
    if (file.rest.empty()) return false;
    line = std::exchange(file.rest, {});
    break;
  }
  ++file.line;
  if (line.ends_with('\r')) line.pop_back();
  return true;
}

}  // namespace

DocumentReader::DocumentReader(DocumentOptions options) : options_(std::move(options)) {}
DocumentReader::~DocumentReader() = default;

bool DocumentReader::open_next() {
  if (next_ == options_.files.size()) return false;
  const std::string& path = options_.files[next_++];
  next_row_ = 0;
  if (!is_json_lines(path) && is_table_file(path)) {
    table_ = open_table_file(path);
    std::vector<size_t> chosen;
    for (const std::string& name : columns_of_field(options_.field))
      if (const int column = table_->find(name); column >= 0) chosen.push_back(static_cast<size_t>(column));
    std::sort(chosen.begin(), chosen.end());
    if (!chosen.empty()) table_->choose(chosen);
  } else {
    file_ = std::make_unique<File>(path);
  }
  return true;
}

std::vector<RawDocument> DocumentReader::read(size_t bytes) {
  std::vector<RawDocument> documents;
  for (size_t total = 0; total < bytes;) {
    if (!file_ && !table_ && !open_next()) break;
    if (table_) {
      if (next_row_ == table_->size()) {
        table_.reset();
        continue;
      }
      documents.push_back({table_->json(next_row_, columns_of_field(options_.field)), table_->where(next_row_), true});
      total += documents.back().text.size();
      ++next_row_;
      continue;
    }
    const bool is_json = is_json_lines(file_->name);
    RawDocument document{{}, file_->name, is_json};
    if (is_json || options_.lines) {
      if (!next_line(*file_, document.text)) {
        file_.reset();
        continue;
      }
      document.where += ":" + std::to_string(file_->line);
    } else {
      while (file_->fill()) {
      }
      document.text = std::move(file_->rest);
      file_.reset();
    }
    if (document.text.empty()) continue;
    total += document.text.size();
    documents.push_back(std::move(document));
  }
  return documents;
}

bool is_json_lines(const std::string& path) {
  const std::string file = shown_url(path);  // The name is taken from the address without its query, because a signed
                                             // address has a query after the name.
  return file.ends_with(".jsonl") || file.ends_with(".jsonl.gz") || file.ends_with(".jsonl.zst") ||
         file.ends_with(".ndjson");
}

std::vector<std::string> columns_of_field(const std::string& field) {
  std::vector<std::string> columns = {field};
  for (size_t dot = field.find('.'); dot != std::string::npos; dot = field.find('.', dot + 1))
    columns.push_back(field.substr(0, dot));
  return columns;
}

std::string text_of(RawDocument&& document, const std::string& field, const std::string& option) {
  if (!document.is_json) return std::move(document.text);
  const auto json = nlohmann::json::parse(document.text, nullptr, false);
  if (json.is_discarded()) throw EnvError("is not JSON");
  const nlohmann::json* const text = find_document_field(json, field);
  if (text == nullptr || !text->is_string())
    throw EnvError("has no text in the field '" + field + "'; name another with " + option);
  return text->get<std::string>();
}

}  // namespace trainctl
