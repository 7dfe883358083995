// Deletes the directory of a checkpoint.
#pragma once

#include <string>

#include "engine/train/files/disk.h"

namespace trainctl {

/// checkpoint.json first, so that what is left after an interruption is not complete. It may be gone already, wholly or
/// in part. EnvError.
void delete_checkpoint(const std::string& directory, Disk& disk = real_disk());

}  // namespace trainctl
