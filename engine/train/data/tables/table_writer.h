// Writes the rows of tables to a file of another format, which its name determines:
//
//   *.jsonl *.jsonl.gz *.jsonl.zst    JSON Lines
//   *.csv                             numbers and texts
//   *.parquet *.arrow                 columns, by Arrow C++ (arrow_file.h)
//   state.json                        a folder as Hugging Face datasets save it
//   *.npz                             an array per column; all rows need the shape of the first
//   *.h5 *.hdf5                       a dataset per column, also of texts
//   *.tar                             a sample per row: images as they are, one integer as .cls, arrays as .npy
//   *.tfrecord                        a tf.Example per row
//   index.json                        shards of MDS
//   data.mdb                          LMDB: COLUMN-NUMBER is a value
//   *.bin, *.idx                      the tokens of one column of integers, as llm.c or Megatron have them
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
  /// Appends a row. `columns`: the numbers of the written columns in `from`. Throws EnvError, with the row, if the
  /// format cannot hold a value, or if the file cannot be written.
  virtual void write(const TableFile& from, int64_t row, const std::vector<size_t>& columns) = 0;
  virtual void finish() = 0;
};

struct TableWriterOptions {
  std::string path;
  std::vector<TableColumn> columns;
  bool replace = false;         ///< an existing file is replaced, else it is an error
  int64_t group_rows = 10'000;  ///< rows of a row group of Parquet
};

/// Throws EnvError if the name has no known format, or the format cannot hold one of the columns.
std::unique_ptr<TableWriter> make_table_writer(const TableWriterOptions& options);
/// Throws EnvError: all formats but JSON Lines refuse such a column.
void refuse_nested(const TableColumn& column);
/// Creates the folder of an index such as index.json. Throws EnvError if that fails.
void make_folder_of(const std::string& index);
/// A .npy file up to its data. `first`: a dim before those of `shape`; -1: none.
std::string numpy_head(StoredElement element, const Shape& shape, int64_t first);
/// Numbers as NumPy has them: bf16 becomes f32.
std::vector<uint8_t> numpy_elements(StoredElement element, std::vector<uint8_t> bytes);
/// "*.jsonl, *.jsonl.zst, …".
std::string table_writer_formats();

// The formats, for make_table_writer.
std::unique_ptr<TableWriter> write_json_lines(const TableWriterOptions& options);
std::unique_ptr<TableWriter> write_arrow_file(const TableWriterOptions& options);
std::unique_ptr<TableWriter> write_npz(const TableWriterOptions& options);
std::unique_ptr<TableWriter> write_tar(const TableWriterOptions& options);
std::unique_ptr<TableWriter> write_csv(const TableWriterOptions& options);
std::unique_ptr<TableWriter> write_hugging_face(const TableWriterOptions& options);
std::unique_ptr<TableWriter> write_hdf5(const TableWriterOptions& options);
std::unique_ptr<TableWriter> write_tfrecord(const TableWriterOptions& options);
std::unique_ptr<TableWriter> write_mds(const TableWriterOptions& options);
std::unique_ptr<TableWriter> write_lmdb(const TableWriterOptions& options);
std::unique_ptr<TableWriter> write_megatron(const TableWriterOptions& options);
std::unique_ptr<TableWriter> write_token_column(const TableWriterOptions& options);

}  // namespace trainctl
