// The folder in which trainctl keeps what can be made again.
#pragma once

#include <filesystem>

namespace trainctl {

/// $XDG_CACHE_HOME/trainctl, or ~/.cache/trainctl; empty if neither is set.
std::filesystem::path cache_folder();

}  // namespace trainctl
