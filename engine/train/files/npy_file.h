// Tensors in files that numpy.load reads. Format 1.0 (numpy/lib/format.py):
//
//   file   = "\x93NUMPY" 1 0 length header data
//   length = u16, little-endian, of the header: the data begins at a multiple of 64
//   header = "{'descr': '<f4', 'fortran_order': False, 'shape': (64, 10), }" blanks newline
//
// f32 and i32 as they are; bf16, which numpy does not know, and f16 as the f32 of the same value.
#pragma once

#include <string>

#include "engine/graph/dtype.h"
#include "engine/graph/shape.h"

namespace trainctl {

/// Everything before the data.
std::string npy_head(const Shape& shape, DType dtype);

/// The same for any file that consists of `head` and the whole tensor, row-major; bf16 and f16 as f32.
void write_tensor_part(const std::string& path, const std::string& head, const Shape& whole, DType dtype,
                       const Shape& first, const Shape& shape, const void* data);

/// Writes this part into the file of the whole tensor: creates it if needed, and leaves the rest as it is. So several
/// processes can write the parts of one file in any order. `data` is contiguous and has `shape`; `first` is its
/// position in `whole`. Throws EnvError.
void write_npy_part(const std::string& path, const Shape& whole, DType dtype, const Shape& first, const Shape& shape,
                    const void* data);

/// Ranks of several hosts have no file in common. Each shard is a file of its own, whose name says where it
/// belongs: the first index, the shard's sizes and those of the whole, "fc.part.4x0.4x16.8x16.npy".
void write_npy_shard(const std::string& folder, const std::string& name, const Shape& whole, DType dtype,
                     const Shape& first, const Shape& shape, const void* data);
/// Joins the shards in each folder in `folder` to whole files, "fc.npy", and deletes them; of two shards with the same
/// elements the newer one counts. Shards that cannot be read stay. Throws EnvError if a whole file cannot be written.
void join_npy_shards(const std::string& folder);

}  // namespace trainctl
