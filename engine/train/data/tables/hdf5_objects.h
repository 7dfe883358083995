// The datasets of an HDF5 file: its superblock, groups and object headers, in the versions that HDF5 1.6 to 1.14 write
// (https://docs.hdfgroup.org/hdf5/v1_14/_f_m_t3.html). It is read without its library, which trusts the file.
//
//   superblock 0, 1     a group is a B-tree of symbol tables, whose names are in a local heap
//   superblock 2, 3     a group has a message per link in its object header
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/graph/shape.h"
#include "engine/train/data/tables/hdf5_bytes.h"
#include "engine/train/data/tables/hdf5_type.h"

namespace trainctl {

enum class Hdf5Storage : uint8_t { none, compact, contiguous, chunked };
/// Tells how the chunks are found: all but btree are only in files of libver='latest'.
enum class Hdf5Index : uint8_t { btree, single, implicit, fixed_array };

struct Hdf5Filter {
  uint16_t id = 0;
  std::vector<uint32_t> values;
};

struct Hdf5Dataset {
  std::string name;  ///< "group/name"
  Shape dims;        ///< the first one is the row
  Hdf5Type type;
  std::vector<uint8_t> fill;  ///< a value for parts that were not written; empty: zeros
  Hdf5Storage storage = Hdf5Storage::none;
  std::vector<uint8_t> compact;
  uint64_t address = kNoHdf5Address;  ///< where the data begin, or the index of chunks
  uint64_t bytes = 0;                 ///< contiguous
  Hdf5Index index = Hdf5Index::btree;
  std::vector<uint64_t> chunk;  ///< dims of a chunk
  bool filters_edges = true;    ///< also chunks that exceed the dataset
  uint64_t single_bytes = 0;    ///< Hdf5Index::single with filters
  uint32_t single_mask = 0;
  std::vector<Hdf5Filter> filters;  ///< in the order of writing
  std::string problem;              ///< why it cannot be read; empty: it can
};

/// Returns all datasets with at least one dim, in the order of the file. `file`: from the superblock. Throws EnvError
/// if the file is damaged, or its groups are stored in a form that is not read.
std::vector<Hdf5Dataset> read_hdf5_datasets(Hdf5Bytes& file);

}  // namespace trainctl
