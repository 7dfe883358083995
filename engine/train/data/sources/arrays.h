// Arrays whose first dim counts samples: files of NumPy, and of safetensors.
//
//   in the file              a sample's elements
//   u1 u2 i4 i8 f4, BF16     as they are
//   bool                     u8, 0 or 1
//   i1 i2                    i32
//   u4                       i64
//   f2                       f32, exact
//   f8                       f32, rounded to the nearest
//
// Refused: u8 (integers of 64 bits without a sign), complex numbers, objects, texts, big-endian numbers, and Fortran's
// order of arrays with more than one dim.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/train/data/source.h"

namespace trainctl {

struct NpyField {
  std::string name;
  std::vector<std::string> paths;  ///< files and globs, joined at their first dim
};
struct NpyOptions {
  std::vector<NpyField> fields;
};
/// Throws SpecError (dataset.fields) if the files do not fit each other; throws EnvError if one is damaged.
std::unique_ptr<Source> open_npy(const NpyOptions& options);

struct ArrayField {
  std::string name;
  std::string array;  ///< its name in the file
};
struct ArrayFileOptions {
  std::vector<std::string> paths;  ///< files and globs, joined at the first dim of the arrays
  std::vector<ArrayField> fields;  ///< empty: every array of the first file, by its own name
};
/// Members that are deflated are inflated into memory here, once.
std::unique_ptr<Source> open_npz(const ArrayFileOptions& options);
/// Reads the arrays that open_npz takes to their end. Throws EnvError if one does not match its checksum in the zip
/// file; open_npz itself checks only compressed arrays.
void check_npz(const ArrayFileOptions& options);
std::unique_ptr<Source> open_safetensors(const ArrayFileOptions& options);

}  // namespace trainctl
