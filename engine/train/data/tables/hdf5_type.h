// Types of HDF5 datasets: the datatype message of an object header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/graph/shape.h"
#include "engine/train/data/sources/stored_element.h"
#include "engine/train/data/tables/hdf5_bytes.h"

namespace trainctl {

/// texts: in the global heap. lists: numbers in the global heap. other: `problem` says why it cannot be read.
enum class Hdf5Kind : uint8_t { number, fixed_text, opaque, texts, lists, compound, other };

struct Hdf5Member;

struct Hdf5Type {
  Hdf5Kind kind = Hdf5Kind::other;
  uint64_t bytes = 0;                         ///< bytes per value
  StoredElement element = StoredElement::u8;  ///< number, lists
  bool is_big_endian = false, is_unsigned_64 = false;
  bool is_space_padded = false;           ///< fixed_text
  Shape shape = {};                       ///< number: an array type has one
  std::vector<std::string> classes = {};  ///< names of an enumeration of 0, 1, 2, …
  std::vector<Hdf5Member> members;
  std::string problem = {};
};

struct Hdf5Member {
  std::string name;
  uint64_t at = 0;  ///< offset in the compound value
  Hdf5Type type;
};

/// Reads one type, and moves past it. Throws EnvError if it is damaged.
Hdf5Type read_hdf5_type(Hdf5Cursor& from, const Hdf5Bytes& file, int depth = 0);

}  // namespace trainctl
