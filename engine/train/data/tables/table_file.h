// A file with a table: rows that have the same named columns. Data sets of tables, documents and `trainctl data
// convert` files through this interface.
//
//   *.jsonl *.jsonl.gz *.jsonl.zst    JSON Lines (json_lines.cpp)
//   *.parquet *.arrow *.feather       columns (arrow_file.cpp), also the files of a Hugging Face folder
//   *.tfrecord *.tfrecords            tf.Example (tfrecord.cpp), also *.tfrecord-00000-of-00010
//   index.json                        MDS, the shards of MosaicML Streaming (mds.cpp)
//   *.idx                             documents of tokens of Megatron (megatron.cpp)
//   *.mdb *.lmdb                      LMDB (lmdb.cpp)
//   *.h5 *.hdf5                       HDF5 (hdf5.cpp)
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/graph/shape.h"
#include "engine/train/data/sources/stored_element.h"

namespace trainctl {

/// json: a text that is JSON. nested: a value that only TableFile::json() can give.
enum class ColumnKind : uint8_t { number, text, bytes, json, nested };
std::string_view to_string(ColumnKind kind);

struct TableColumn {
  std::string name;
  ColumnKind kind = ColumnKind::number;
  StoredElement element = StoredElement::f64;  ///< number
  Shape shape = {};                            ///< number: shape of one row's value; -1: the dim differs between rows
  bool is_untyped = false;                ///< the format does not distinguish integers from floats: `element` is f64
  std::vector<std::string> classes = {};  ///< the names of the classes that the numbers are, if the file has them

  /// "f32 [3, 2]", "text".
  std::string type_text() const;
};

struct TableValue {
  bool is_null = true;
  Shape shape;                 ///< number
  std::vector<uint8_t> bytes;  ///< number: the elements, row-major; others: the text or the bytes

  void set_bytes(std::string_view text) {
    is_null = false;
    bytes.assign(text.begin(), text.end());
  }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
};

class TableFile {
 public:
  virtual ~TableFile() = default;
  virtual int64_t size() const = 0;
  virtual const std::vector<TableColumn>& columns() const = 0;
  /// Only these columns, by number, will be read. Called before the first read; other columns are then never decoded.
  virtual void choose(const std::vector<size_t>&) {}
  /// Reads the values of some columns of one row. Any number of threads may call it at once. Throws EnvError, with
  /// where(), if the file is damaged.
  virtual void read(int64_t row, std::span<const size_t> columns, std::span<TableValue> out) const = 0;
  /// Some columns of a row as a JSON object; all of them if `names` is empty. Columns that the file does not have are
  /// left out. Throws the same errors as read().
  virtual std::string json(int64_t row, const std::vector<std::string>& names) const;
  /// "talks.jsonl:12", "part-0.parquet: row 12", counted from 0 where the format counts so.
  virtual std::string where(int64_t row) const = 0;
  /// Requests the bytes of a row from the system in the background.
  virtual void expect(int64_t) const {}
  virtual int64_t memory_bytes() const = 0;
  /// -1: there is no such column.
  int find(std::string_view column) const;
};

/// True for a file that open_table_file reads, by its name.
bool is_table_file(const std::string& path);
/// Throws EnvError if the file cannot be read or is damaged.
std::unique_ptr<TableFile> open_table_file(const std::string& path);
/// The files whose bytes the records come from, without repetition: the file itself, and shards that it names.
std::vector<std::string> table_file_parts(const std::string& path);
/// The tables that a folder consists of: the Arrow files of a Hugging Face folder, the index of MDS, the file
/// of LMDB, or Parquet shards. Empty for other folders. Throws EnvError for a damaged or ambiguous folder.
std::vector<std::string> table_files_of_folder(const std::string& folder);

}  // namespace trainctl
