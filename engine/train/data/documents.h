// Reads the documents of files: a whole text file, each of its lines, or a field of each line of JSON Lines or of each
// row of another table (table_file.h). Texts and JSON Lines may be compressed by gzip or zstd.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/train/data/tables/table_file.h"

namespace trainctl {

struct DocumentOptions {
  std::vector<std::string> files;  ///< "-" is stdin
  std::string field = "text";      ///< read from JSON Lines and other tables
  bool lines = false;              ///< each line of other files is a document
};

/// A document as it is in its file. A line of JSON Lines is not parsed yet.
struct RawDocument {
  std::string text;
  std::string where;  ///< "talks.jsonl:12"
  bool is_json = false;
};

class DocumentReader {
 public:
  explicit DocumentReader(DocumentOptions options);
  ~DocumentReader();
  /// Returns the next documents, about `bytes` bytes in total; none at the end. Throws EnvError if a file cannot be
  /// read.
  std::vector<RawDocument> read(size_t bytes);

 private:
  struct File;
  bool open_next();

  DocumentOptions options_;
  std::unique_ptr<File> file_;        ///< the file that is read, if it has texts
  std::unique_ptr<TableFile> table_;  ///< the same for rows of a table
  int64_t next_row_ = 0;
  size_t next_ = 0;
};

/// The value of a field of a document, or null. `field`: its name, or the names of nested objects joined by dots
/// (`sample.text`), the last of which is the field.
template <class Object>
const Object* find_document_field(const Object& document, const std::string& field) {
  if (!document.is_object()) return nullptr;
  if (const auto found = document.find(field); found != document.end()) return &*found;
  for (size_t dot = field.find('.'); dot != std::string::npos; dot = field.find('.', dot + 1))
    if (const auto outer = document.find(field.substr(0, dot)); outer != document.end())
      if (const Object* inner = find_document_field(*outer, field.substr(dot + 1)); inner != nullptr) return inner;
  return nullptr;
}
/// The columns of a table that can have the field: one of its name, or a column of objects.
std::vector<std::string> columns_of_field(const std::string& field);

/// The text of a document. Throws EnvError, without its place, if the line is not JSON, or has no text in the field.
/// `option`: the one that names the field.
std::string text_of(RawDocument&& document, const std::string& field, const std::string& option);

/// True for *.jsonl, *.jsonl.gz, *.jsonl.zst and *.ndjson.
bool is_json_lines(const std::string& file);

}  // namespace trainctl
