// Makes a file of an earlier checkpoint part of a later one too, so that each is complete by itself.
#pragma once

#include <string>

#include "engine/train/files/disk.h"

namespace trainctl {

/// The same file under a second name, or a synced copy where the file system has no links. Throws EnvError.
void link_or_copy(const std::string& from, const std::string& to, Disk& disk = real_disk());

}  // namespace trainctl
