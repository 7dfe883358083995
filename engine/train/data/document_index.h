// The documents of files, to be read in any order: the lines of JSON Lines, the rows of other tables (table_file.h), or
// whole text files. The text of compressed files is kept in memory, because they cannot be read from the middle.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/train/data/sources/open_files.h"
#include "engine/train/data/tables/table_file.h"

namespace trainctl {

/// Calls a function, and turns its EnvError into an error of the job, because the job names the data.
template <class F>
auto of_the_document_job(const char* field, F&& read) {
  try {
    return read();
  } catch (const EnvError& error) {
    throw SpecError({}, field, error.what());
  }
}

class DocumentIndex {
 public:
  /// Reads the files to find their lines. From rows of tables only these `columns` are read; if `columns` is empty, all
  /// are. Throws EnvError if a file cannot be read.
  explicit DocumentIndex(const std::vector<std::string>& files, std::vector<std::string> columns = {});

  int64_t size() const { return static_cast<int64_t>(places_.size()); }
  /// The document: the whole text, a line of JSON Lines, or a row of a table as JSON.
  std::string read(int64_t document) const;
  bool is_json(int64_t document) const { return files_[place(document).file].is_json; }
  void expect(int64_t document) const;
  /// The place of the document for messages, such as "talks.jsonl:12".
  std::string where(int64_t document) const;
  int64_t memory_bytes() const;

 private:
  struct File {
    bool is_json = false, is_compressed = false;
    std::string text = {};                  ///< text of a compressed file
    std::unique_ptr<TableFile> table = {};  ///< null for texts and JSON Lines
  };
  struct Place {
    size_t file = 0;
    int64_t at = 0, bytes = 0, line = 0;  ///< at: the row of a table
  };
  const Place& place(int64_t document) const { return places_[static_cast<size_t>(document)]; }
  void add_file(size_t file);
  void add_lines(size_t file);
  void add_rows(size_t file);

  OpenFiles open_;
  std::vector<std::string> columns_;
  std::vector<File> files_;
  std::vector<Place> places_;
};

}  // namespace trainctl
