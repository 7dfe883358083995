// Limits on the files, pipes and sockets that this process can have open.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <cstddef>

namespace trainctl {

/// Raises this process's limit to `count`, or to the hard limit if that is lower. A shell's own limit is often 1024.
inline void allow_open_files(rlim_t count = RLIM_INFINITY) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= count) return;
  limit.rlim_cur = std::min(count, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
}

/// Maximum number of unauthenticated connections that a listener keeps open: at most `wanted`, and at most a quarter of
/// the limit of this process, so that enough descriptors remain.
inline size_t most_unauthenticated(size_t wanted) {
  constexpr rlim_t kShare = 4;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  return std::clamp<size_t>(static_cast<size_t>(limit.rlim_cur / kShare), 1, wanted);
}

}  // namespace trainctl
