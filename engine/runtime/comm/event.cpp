// Waiting for a number in shared memory to change: spins if a core is free for that, else sleeps in the kernel (futex).
// No wake-up is lost: the sleeper counts itself before the kernel compares the value, and the publisher stores the
// value before it reads the count; both are sequentially consistent.
#include "engine/runtime/comm/event.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <vector>

namespace trainctl::comm {

void Event::sleep(uint32_t seen, std::chrono::nanoseconds limit) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec relative{.tv_sec = seconds.count(), .tv_nsec = (limit - seconds).count()};
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  if (value_.load(std::memory_order_seq_cst) == seen) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value_), FUTEX_WAIT, seen, &relative, nullptr, 0);
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

void Event::wake(int count) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value_), FUTEX_WAKE, count, nullptr, nullptr, 0);
}

int usable_cores() {
  // The launcher states the cores of all ranks: a rank that is bound to its own cores has peers on other cores.
  const char* of_all = std::getenv("TRAINCTL_HOST_CORES");
  if (of_all != nullptr && std::atoi(of_all) > 0) return std::atoi(of_all);
  // The kernel refuses a mask that is shorter than its own, as a cpu_set_t is on hosts of more than 1,024 CPUs.
  for (size_t words = sizeof(cpu_set_t) / sizeof(unsigned long);; words *= 2) {
    std::vector<unsigned long> mask(words);
    const size_t bytes = words * sizeof(unsigned long);
    auto* set = reinterpret_cast<cpu_set_t*>(mask.data());
    if (sched_getaffinity(0, bytes, set) == 0) return CPU_COUNT_S(bytes, set);
    if (errno != EINVAL || bytes > (size_t{1} << 20)) return 1;
  }
}

}  // namespace trainctl::comm
