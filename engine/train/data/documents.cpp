// See the header.
#include "engine/train/data/documents.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/error.h"

namespace trainctl {

struct DocumentReader::File {
  explicit File(const std::string& path) : name(path == "-" ? "stdin" : path) {
    const int fd = path == "-" ? dup(0) : open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) throw EnvError(name + ": cannot be read: " + std::strerror(errno));
    file = gzdopen(fd, "rb");  // reads files that are not compressed as they are
    check(file != nullptr, "gzdopen needs only memory");
  }
  ~File() { gzclose(file); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  /// Appends bytes to `rest`; false at the end.
  bool fill() {
    std::array<char, 1 << 16> buffer;
    const int count = gzread(file, buffer.data(), buffer.size());
    if (count < 0) {
      int code = 0;
      throw EnvError(name + ": cannot be read: " + gzerror(file, &code));
    }
    rest.append(buffer.data(), static_cast<size_t>(count));
    return count > 0;
  }

  std::string name, rest;
  size_t at = 0;  ///< offset of the next line in `rest`
  int64_t line = 0;
  gzFile file = nullptr;
};

namespace {

/// The next line without its end; false at the end of the file.
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

DocumentReader::DocumentReader(DocumentOptions options) : options_(std::move(options)) {
  for (const std::string& file : options_.files) (void)is_json_lines(file);
}
DocumentReader::~DocumentReader() = default;

bool DocumentReader::open_next() {
  if (next_ == options_.files.size()) return false;
  file_ = std::make_unique<File>(options_.files[next_++]);
  return true;
}

std::vector<RawDocument> DocumentReader::read(size_t bytes) {
  std::vector<RawDocument> documents;
  for (size_t total = 0; total < bytes;) {
    if (!file_ && !open_next()) break;
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

bool is_json_lines(const std::string& file) {
  if (file.ends_with(".parquet"))
    throw EnvError(file +
                   ": Parquet files are not supported; write JSON Lines, for example with Python: "
                   "pandas.read_parquet(file).to_json('talks.jsonl', orient='records', lines=True)");
  return file.ends_with(".jsonl") || file.ends_with(".jsonl.gz");
}

std::string text_of(RawDocument&& document, const std::string& field) {
  if (!document.is_json) return std::move(document.text);
  const auto json = nlohmann::json::parse(document.text, nullptr, false);
  if (json.is_discarded()) throw EnvError(document.where + ": is not JSON");
  const auto found = json.is_object() ? json.find(field) : json.end();
  if (!json.is_object() || found == json.end() || !found->is_string())
    throw EnvError(document.where + ": has no text in the field '" + field + "'; choose another with --field");
  return found->get<std::string>();
}

}  // namespace trainctl
