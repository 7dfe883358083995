// The chunks of an HDF5 dataset: where they are in the file, and their values after the filters.
//
//   filter       number     written by
//   deflate      1          compression="gzip"
//   shuffle      2          shuffle=True
//   fletcher32   3          fletcher32=True; the checksum is compared
//   lzf          32000      compression="lzf"
//   zstd         32015      hdf5plugin.Zstd()
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/train/data/tables/hdf5_objects.h"

namespace trainctl {

struct Hdf5Chunk {
  uint64_t address = kNoHdf5Address, bytes = 0;
  uint32_t mask = 0;  ///< filters that were left out
};

/// By number: chunks are counted row-major over the whole dataset. Chunks that were not written are missing.
using Hdf5Chunks = std::unordered_map<uint64_t, Hdf5Chunk>;

/// Chunks along each dim.
std::vector<uint64_t> hdf5_chunk_grid(const Hdf5Dataset& set);
/// Bytes of a chunk without compression.
uint64_t hdf5_chunk_bytes(const Hdf5Dataset& set);

/// Throws EnvError if the index is damaged.
Hdf5Chunks read_hdf5_chunks(const Hdf5Bytes& file, const Hdf5Dataset& set);
/// The values of a chunk. Throws EnvError if it is damaged.
std::vector<uint8_t> read_hdf5_chunk(const Hdf5Bytes& file, const Hdf5Dataset& set, const Hdf5Chunk& chunk);

/// Returns why the filters of a dataset cannot be undone; empty: they can.
std::string hdf5_filter_problem(const Hdf5Dataset& set);

}  // namespace trainctl
