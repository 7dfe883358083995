// Counts the processors on which a thread may run, on hosts of any size.
#include "engine/base/processors.h"

#include <sched.h>

#include <cerrno>
#include <cstddef>
#include <vector>

namespace trainctl {

int allowed_processors() {
  // The kernel refuses a mask that is shorter than its own, as a cpu_set_t is on hosts of more than 1,024 CPUs.
  for (size_t words = sizeof(cpu_set_t) / sizeof(unsigned long);; words *= 2) {
    std::vector<unsigned long> mask(words);
    const size_t bytes = words * sizeof(unsigned long);
    auto* set = reinterpret_cast<cpu_set_t*>(mask.data());
    if (sched_getaffinity(0, bytes, set) == 0) return CPU_COUNT_S(bytes, set);
    if (errno != EINVAL || bytes > (size_t{1} << 20)) return 0;
  }
}

}  // namespace trainctl
