// Writes the rows of tables to a file of another format, which its name determines:
//
//   *.jsonl *.jsonl.zst     JSON Lines
//   *.parquet *.arrow       columns, by Arrow C++ (arrow_file.h)
//   *.npz                   an array per column; all rows need the shape of the first
//   *.tar                   a sample per row: images as they are, one integer as .cls, arrays as .npy, texts as .txt
//   *.bin                   the tokens of one column of integers
//
// A file appears with its whole content: it is written under another name first.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/train/data/tables/table_file.h"

namespace trainctl {

class TableWriter {
 public:
  virtual ~TableWriter() = default;  ///< without finish() nothing is left
  /// Appends a row. `columns`: the numbers of the written columns in `from`. EnvError, with the row, if the format
  /// cannot hold a value, or if the file cannot be written.
  virtual void write(const TableFile& from, int64_t row, const std::vector<size_t>& columns) = 0;
  virtual void finish() = 0;
};

struct TableWriterOptions {
  std::string path;
  std::vector<TableColumn> columns;
  bool replace = false;         ///< an existing file is replaced, else it is an error
  int64_t group_rows = 10'000;  ///< rows of a row group of Parquet
};

/// EnvError if the name has no known format, or the format cannot hold one of the columns.
std::unique_ptr<TableWriter> make_table_writer(const TableWriterOptions& options);
/// "*.jsonl, *.jsonl.zst, …".
std::string table_writer_formats();

// The formats, for make_table_writer.
std::unique_ptr<TableWriter> write_json_lines(const TableWriterOptions& options);
std::unique_ptr<TableWriter> write_arrow_file(const TableWriterOptions& options);
std::unique_ptr<TableWriter> write_npz(const TableWriterOptions& options);
std::unique_ptr<TableWriter> write_tar(const TableWriterOptions& options);
std::unique_ptr<TableWriter> write_token_column(const TableWriterOptions& options);

}  // namespace trainctl
