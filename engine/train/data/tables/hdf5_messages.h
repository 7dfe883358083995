// The headers of the objects of an HDF5 file: lists of messages, each with one fact about a group or a dataset.
//
//   header, from HDF5 1.8 on   OHDR version flags [times] [counts] size | messages
//   older header               version … size | messages
//   message                    type, bytes, flags | its facts, or the address of another object that has them (shared)
//
// A message of type continuation is the place of a further block of messages (OCHK in new headers).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/train/data/tables/hdf5_bytes.h"

namespace trainctl {

enum class Hdf5MessageType : uint16_t {
  dataspace = 1,
  link_info = 2,
  datatype = 3,
  old_fill = 4,
  fill = 5,
  link = 6,
  external_files = 7,
  layout = 8,
  filters = 11,
  continuation = 16,
  symbol_table = 17,
};

struct Hdf5Message {
  Hdf5MessageType type = {};
  bool is_shared = false;
  std::vector<uint8_t> bytes;
};

/// Throws the error for a sound file that has something that this reader does not support.
[[noreturn]] void refuse_hdf5(const std::string& path, const std::string& what);

/// Reads the messages of objects. Refers to `file`.
class Hdf5Headers {
 public:
  explicit Hdf5Headers(Hdf5Bytes& file) : file_(file), path_(file.file.path()) {}

  /// The messages of the object at this address.
  std::vector<Hdf5Message> read(uint64_t address);
  /// Finds the message of a type. If it is shared, returns the message of the object that it refers to. Null if there
  /// is none.
  const Hdf5Message* find(const std::vector<Hdf5Message>& messages, Hdf5MessageType type);
  /// Bounds the work that a damaged file can cause: a structure of the file is read once.
  void count(uint64_t bytes);

 private:
  using Blocks = std::vector<std::pair<uint64_t, uint64_t>>;  ///< place and size

  [[noreturn]] void fail(const std::string& what) const { fail_hdf5(path_, what); }
  void read_block(Hdf5Cursor& from, bool is_new, bool has_order, size_t checksum, std::vector<Hdf5Message>& messages,
                  Blocks& blocks);
  const Hdf5Message* shared(const Hdf5Message& message);

  Hdf5Bytes& file_;
  std::string path_;
  std::map<uint64_t, std::vector<Hdf5Message>> shared_;  ///< messages of objects that others refer to
  uint64_t used_ = 0;
};

}  // namespace trainctl
