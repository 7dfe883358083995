// Adds a file of an earlier checkpoint to a later checkpoint too, so that each checkpoint is complete by itself.
#pragma once

#include <string>

#include "engine/train/files/disk.h"

namespace trainctl {

/// Gives the file a second name, or makes a synced copy where the file system has no hard links. Throws EnvError.
void link_or_copy(const std::string& from, const std::string& to, Disk& disk = real_disk());

}  // namespace trainctl
