// Notices of kernels while they are prepared: what a run is without, or computes in a slower way.
#include "engine/ops/cuda/print_once.h"

#include <cstdio>
#include <mutex>
#include <set>

namespace trainctl {

void print_once(const std::string& line) {
  static std::mutex mutex;
  static auto& logged = *new std::set<std::string>;
  const std::lock_guard lock(mutex);
  if (!logged.insert(line).second) return;
  std::fputs((line + "\n").c_str(), stderr);
}

}  // namespace trainctl
