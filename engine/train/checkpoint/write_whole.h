// A checkpoint of many ranks as one file.
#pragma once

#include <string>
#include <vector>

#include "engine/train/checkpoint/manifest.h"
#include "engine/train/files/disk.h"

namespace trainctl {

/// Writes one safetensors file of whole tensors, each named by the piece_key of the whole; only those of `slots`, or
/// all if it is empty. Needs a few MiB of memory, whatever the tensors' sizes. The file is there whole or not at all,
/// and replaces one of this name. Throws EnvError.
StoredFile write_whole(const Manifest& manifest, const std::string& directory, const std::string& path,
                       const std::vector<std::string>& slots = {}, Disk& disk = real_disk());

}  // namespace trainctl
