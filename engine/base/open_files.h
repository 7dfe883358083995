// How many files, pipes and sockets this process may have open.
#pragma once

#include <sys/resource.h>

#include <algorithm>

namespace trainctl {

/// Raises this process's limit to `count`, or to the hard limit if that is lower. A shell's own limit is often 1024.
inline void allow_open_files(rlim_t count = RLIM_INFINITY) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= count) return;
  limit.rlim_cur = std::min(count, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace trainctl
