// The rendezvous of ranks: set a key, or wait for one that another rank sets.
#include "engine/runtime/comm/key_value_store.h"

#include <fmt/format.h>

#include <chrono>

#include "engine/base/error.h"

namespace trainctl {

void InMemoryStore::set(const std::string& key, const std::vector<char>& bytes) {
  const std::lock_guard lock(mutex_);
  items_.insert_or_assign(key, bytes);
  changed_.notify_all();
}

std::vector<char> InMemoryStore::get(const std::string& key, double timeout_seconds) {
  // ThreadSanitizer of GCC 12 understands only waits on the system clock.
  const auto deadline = std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::microseconds>(
                                                               std::chrono::duration<double>(timeout_seconds));
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline, [&] { return items_.count(key) != 0; })) {
    throw EnvError(fmt::format("store: no rank has set '{}' within {:g} s", key, timeout_seconds));
  }
  return items_.at(key);
}

}  // namespace trainctl
