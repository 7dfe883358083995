// Files of named tensors that the safetensors libraries read and write (github.com/huggingface/safetensors).
//
//   file    = length header data
//   length  = u64, little-endian: the bytes of the header, at most 100,000,000
//   header  = JSON object, begins with '{'; blanks may follow it
//             {"__metadata__": {"key": "text", …}?, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
//             …}
//   data    = the tensors: little-endian, row-major, each at [begin, end) of the data, one after the other in order of
//             their offsets, without overlaps or holes, up to the end of the file
//
// A reader refuses names that occur twice, unknown dtypes, and offsets that disagree with dtype and shape. Our writer
// pads the header with blanks, so that data begin at a multiple of 8, and puts wide types first, so that each tensor is
// aligned. Every defect of a file is an EnvError that names the file, what was expected and what was found.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/graph/dtype.h"
#include "engine/graph/shape.h"
#include "engine/train/files/disk.h"

namespace trainctl {

class InputFile;

/// The dtypes of the published format, in its order of alignment: the narrow ones first.
enum class StoredType : uint8_t {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64
};
std::string_view to_string(StoredType type);  ///< name in a header: "F32"
int bits_of(StoredType type);  ///< bits of an element: those of 4 and 6 are packed, across a whole number of bytes
StoredType stored_type(DType type);

inline constexpr int64_t kMostHeaderBytes = 100'000'000;

struct SafetensorsEntry {
  std::string name;
  StoredType type = StoredType::f32;
  Shape shape;
  int64_t begin = 0, end = 0;  ///< bytes of the data, after the header

  int64_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  ///< in order of their offsets
  std::map<std::string, std::string> metadata;
  int64_t data_at = 0;  ///< where the data begin in the file

  int64_t data_bytes() const { return entries.empty() ? 0 : entries.back().end; }
};

/// `start`: the file's first bytes, length and header at least, or all of a file that is shorter than it says.
SafetensorsHeader parse_safetensors_header(std::span<const uint8_t> start, int64_t file_bytes, const std::string& file);

/// Gives entries their offsets, wide types first, otherwise in the given order. Their `begin` and `end` are not read.
/// check(): names are distinct and not "__metadata__".
SafetensorsHeader lay_out(std::vector<SafetensorsEntry> entries, std::map<std::string, std::string> metadata = {});
/// Length and header, as stored in the file: header.data_at bytes.
std::string safetensors_head(const SafetensorsHeader& header);

/// All that the size of a file depends on.
struct SafetensorsEntrySize {
  int64_t name_bytes = 0;  ///< header_name_bytes
  StoredType type = StoredType::f32;
  Shape shape;
};
/// Bytes of a name in a header, as a JSON string.
int64_t header_name_bytes(std::string_view name);
/// Bytes of the file of these entries that lay_out() describes, without their text.
int64_t safetensors_bytes(std::vector<SafetensorsEntrySize> entries);

/// An open file. Any number of threads may read.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::string path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const;
  const SafetensorsHeader& header() const { return header_; }
  const SafetensorsEntry* find(const std::string& name) const;  ///< null if there is none
  /// Bytes [at, at + to.size()) of the entry's data, and no others, from the file.
  void read(const SafetensorsEntry& entry, int64_t at, std::span<uint8_t> to) const;

 private:
  std::unique_ptr<InputFile> file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string, size_t> index_;
};

/// Size and checksum of a file that is on the disk.
struct FileDigest {
  int64_t bytes = 0;
  std::string xxh128;  ///< 32 hexadecimal digits
};

/// Writes one file. What is written in the file's order is digested on the way; anything else is read again at the end.
class SafetensorsWriter {
 public:
  SafetensorsWriter(std::string path, std::vector<SafetensorsEntry> entries,
                    std::map<std::string, std::string> metadata = {}, Disk& disk = real_disk());
  ~SafetensorsWriter();

  /// The entries are in the order of the file; index_of finds an entry by its name.
  const SafetensorsHeader& header() const;
  size_t index_of(const std::string& name) const;
  /// Bytes [at, at + bytes.size()) of an entry's data; each byte is written once.
  void write(size_t entry, int64_t at, std::span<const uint8_t> bytes);
  /// Syncs and closes. check(): every byte was written.
  FileDigest finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainctl
