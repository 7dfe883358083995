// Tables of text (RFC 4180): a row is a sample.
//
//   file  := header? row*        row   := value (delimiter value)* (LF | CRLF)
//   value := any characters but the delimiter, quotes and line ends | " (any character but a quote | "")* "
//
// Blank lines, and a byte order mark at the start, do not count. Blanks around a number do not count either.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/train/data/source.h"

namespace trainctl {

struct CsvField {
  std::string name;
  std::vector<std::string> columns;     ///< names in the header, or numbers from 1; each is one element
  bool scalar = false;                  ///< one column with shape [] rather than [1]
  ElementType type = ElementType::f32;  ///< i32, i64 or f32
  bool words = false;                   ///< the column has words, and the elements are their numbers: i32 or i64
  std::vector<std::string> classes;     ///< words in the order of their numbers; empty: all words of the column, sorted
};

struct CsvOptions {
  std::vector<std::string> paths;  ///< files and globs
  std::vector<CsvField> fields;
  bool header = true;  ///< the first row of each file names the columns
  char delimiter = ',';
};

/// Reads the files once to find the rows, and keeps about 4 bytes per row. Throws SpecError (dataset.path,
/// dataset.fields) if the files lack something that is requested; throws EnvError with file:line if one is damaged.
std::unique_ptr<Source> open_csv(const CsvOptions& options);

}  // namespace trainctl
