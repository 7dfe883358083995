// Deletes the directory of a checkpoint.
#pragma once

#include <string>

#include "engine/train/files/disk.h"

namespace trainctl {

/// Deletes checkpoint.json first, so that an interruption never leaves a directory that looks complete. Ignores files
/// that are already gone. Throws EnvError.
void delete_checkpoint(const std::string& directory, Disk& disk = real_disk());

}  // namespace trainctl
