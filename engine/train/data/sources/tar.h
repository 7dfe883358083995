// Shards of samples: tar files in which consecutive files with a common stem are a sample, as webdataset writes them.
//
//   000017.jpg  000017.cls  000018.jpg  000018.cls …     the stem ends at the first dot of the file's own name
//
//   jpg jpeg png    an image
//   cls             an integer in decimal digits
//   npy             an array, of the same type and shape in all samples
//   txt             bytes, of any length
//
// The last part of an extension decides: 000017.mask.png is an image. Folders, files whose name begins with a dot or
// __, and files without an extension belong to no sample.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/train/data/source.h"

namespace trainctl {

struct TarField {
  std::string name;
  std::vector<std::string> extensions;  ///< each sample has one of these files
};

struct TarOptions {
  std::vector<std::string> paths;  ///< files and globs
  /// Empty: image of jpg, jpeg or png, label of cls, and others by their extension.
  std::vector<TarField> fields;
  ElementType label_type = ElementType::i32;  ///< type of cls: i32 or i64
};

/// Maps the index next to each shard (NAME.tar.idx, see tar_index.h), or reads all headers of a shard that has none.
/// Throws SpecError (dataset.path, dataset.fields) for what the shards do not have; throws EnvError if one is damaged.
std::unique_ptr<Source> open_tar(const TarOptions& options);

}  // namespace trainctl
