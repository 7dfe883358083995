// Memory in which the ranks of a host cache samples for each other (engine/train/data/cached_set.h): an unnamed file
// that they inherit.
#include "cli/run/launch/shared_cache.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/machine_limits.h"

namespace trainctl {

SharedCache SharedCache::create() {
  SharedCache cache;
  cache.fd_ = memfd_create("trainctl samples", MFD_CLOEXEC);
  if (cache.fd_ < 0) throw EnvError(fmt::format("cannot allocate the shared sample cache: {}", describe_errno(errno)));
  return cache;
}

SharedCache::~SharedCache() {
  if (fd_ >= 0) close(fd_);
}

SharedCache::SharedCache(SharedCache&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

SharedCache& SharedCache::operator=(SharedCache&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

}  // namespace trainctl
