// CIFAR's binary files: records of bytes.
//
//   cifar10     label  red[32][32] green[32][32] blue[32][32]           3,073 bytes
//   cifar100    coarse fine  red green blue                             3,074 bytes
//
// Fields: image, u8 [3, 32, 32] as in the file; label, u8 (of cifar100 the fine one), and for cifar100 coarse, u8.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/train/data/source.h"

namespace trainctl {

struct CifarOptions {
  std::vector<std::string> paths;  ///< files and globs: data_batch_*.bin
  int classes = 10;                ///< or 100
};

/// Throws SpecError (dataset.path) for no files; throws EnvError if one is not a whole number of records.
std::unique_ptr<Source> open_cifar(const CifarOptions& options);

}  // namespace trainctl
