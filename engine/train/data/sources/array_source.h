// A source over arrays in files: each field is one array, or several joined at their first dim.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/train/data/source.h"
#include "engine/train/data/sources/open_files.h"
#include "engine/train/data/sources/stored_element.h"

namespace trainctl {

/// Evenly spaced samples of one field, in a file or in memory.
struct ArrayPiece {
  size_t file = 0;                                    ///< index in OpenFiles of the file that the samples come from
  std::shared_ptr<const std::vector<uint8_t>> bytes;  ///< if not null, the samples are here instead of in the file
  int64_t at = 0;                                     ///< byte offset of the first sample, in the file or in `bytes`
  int64_t stride = 0;                                 ///< bytes from the start of one sample to the start of the next
  int64_t samples = 0;
};

struct ArrayColumn {
  std::string name;
  StoredElement stored = StoredElement::u8;
  Shape shape;  ///< shape of one sample
  std::vector<ArrayPiece> pieces;

  int64_t samples() const;
};

/// Throws SpecError (dataset.fields, or dataset.path if there are none) if the columns differ in their number of
/// samples.
std::unique_ptr<Source> make_array_source(std::unique_ptr<OpenFiles> files, std::vector<ArrayColumn> columns);

}  // namespace trainctl
