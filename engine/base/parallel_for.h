// Independent work on several cores.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

namespace trainctl {

/// Calls work(i) for each i in [0, count), on as many threads as there are cores, but at least `least` calls on each.
/// Calls must not depend on each other. If some throw, the exception of the lowest i is thrown once all have ended.
template <class Work>
void parallel_for(size_t count, size_t least, const Work& work) {
  const size_t cores = std::max<size_t>(1, std::thread::hardware_concurrency());
  const size_t threads = std::clamp<size_t>(count / std::max<size_t>(1, least), 1, cores);
  std::vector<std::exception_ptr> errors(count);
  std::atomic<size_t> next = 0;
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> others;
  for (size_t t = 1; t < threads; ++t) others.emplace_back(run);
  run();
  for (std::thread& other : others) other.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace trainctl
