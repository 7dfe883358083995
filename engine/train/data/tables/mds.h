// MDS, the format of MosaicML Streaming. A folder has index.json and shards, which may be compressed by zstd or gzip:
//
//   shard   := u32 samples  u32 offset{samples + 1}  config (JSON)  sample*
//   sample  := u32 size{columns without a fixed size}  value{columns}
//
// index.json gives the columns, their encodings and fixed sizes, and the sizes of the shards, with and without
// compression. Numbers are little-endian.
//
//   encoding                                     column of the table
//   int, int8 … uint64, float16 … float64        a number; uint64 as i64
//   str, str_int, str_float, str_decimal         text
//   json                                         json
//   bytes, jpeg, png                             bytes
//   ndarray:TYPE:SHAPE                           numbers of this shape
//   ndarray:TYPE, ndarray                        numbers of any shape
//   pkl, pil, list[…] and others                 refused when the column is read
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/train/data/tables/table_file.h"

namespace trainctl {

inline constexpr const char* kMdsIndexName = "index.json";

/// `index`: the path of index.json. Throws EnvError if it, or the beginning of a shard, is damaged.
std::unique_ptr<TableFile> open_mds(const std::string& index);
/// index.json and the shards that it names.
std::vector<std::string> mds_parts(const std::string& index);

}  // namespace trainctl
