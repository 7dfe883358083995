// One part of a set: split: {train: 0.9, validation: 0.1}. The parts have no sample in common, and together have all
// samples.
//
// Splitting by number: samples are taken in blocks of 10,000, and a keyed permutation assigns the samples of a block to
// the parts. A block has exactly its share of samples for each part, and no list is stored. Samples that are added at
// the end of a set leave all earlier samples in their parts. Splitting by name: a hash of the file's path below the
// set's folder decides. Files that are added anywhere leave the other files in their parts, and equal names in several
// folders are independent. This stores 4 bytes per sample.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/train/data/source.h"

namespace trainctl {

struct SplitOptions {
  std::vector<std::pair<std::string, double>> parts;  ///< name and share; the shares add up to 1
  std::string part;                                   ///< the one to open
  uint64_t seed = 0;
  bool by_name = false;
  std::vector<std::string> folders;  ///< by_name: what precedes a name in where()
};

/// Throws SpecError (dataset.split) if the shares are wrong, or the part has no sample.
std::unique_ptr<Source> open_split(std::shared_ptr<const Source> set, const SplitOptions& options);

}  // namespace trainctl
