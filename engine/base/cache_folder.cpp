// The folder in which trainctl keeps what can be made again.
#include "engine/base/cache_folder.h"

#include <cstdlib>

namespace trainctl {

std::filesystem::path cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (cache != nullptr && *cache != '\0') return std::filesystem::path(cache) / "trainctl";
  if (home != nullptr && *home != '\0') return std::filesystem::path(home) / ".cache" / "trainctl";
  return {};
}

}  // namespace trainctl
