// Waiting for a number in shared memory to change: spins if a core is free for that, else sleeps in the kernel (futex).
// No wake-up is lost: the sleeper counts itself before the kernel compares the value, and the publisher stores the
// value before it reads the count; both are sequentially consistent.
#include "engine/runtime/comm/event.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "engine/base/processors.h"

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
  return std::max(allowed_processors(), 1);
}

}  // namespace trainctl::comm
