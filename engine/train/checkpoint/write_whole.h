// Writes a checkpoint of many ranks as one file.
#pragma once

#include <string>
#include <vector>

#include "engine/train/checkpoint/manifest.h"
#include "engine/train/files/disk.h"

namespace trainctl {

/// Writes one safetensors file of whole tensors, each named by the piece_key of the whole tensor. Writes only tensors
/// of `slots`, or all tensors if `slots` is empty. Needs a few MiB of memory, whatever the sizes of the tensors. The
/// file appears only when it is complete, and replaces an existing file of the same name. Throws EnvError.
StoredFile write_whole(const Manifest& manifest, const std::string& directory, const std::string& path,
                       const std::vector<std::string>& slots = {}, Disk& disk = real_disk());

}  // namespace trainctl
