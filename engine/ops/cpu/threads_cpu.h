// Fork and join for kernels that use more than one thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace trainctl::cpu {

/// Calls body(context, part) for each part in [0, parts), part 0 on this thread. Each calling thread has its own
/// workers, started on first use or by start_workers(); one part needs none. `body` must not throw.
void run_parts(int parts, void (*body)(const void* context, int part), const void* context);

/// Starts this thread's workers, so that the first run allocates nothing.
void start_workers(int parts);

template <class F>
void run_parts(int parts, const F& body) {
  run_parts(
      parts, [](const void* context, int part) { (*static_cast<const F*>(context))(part); }, &body);
}

/// Calls body(begin, end) for consecutive ranges that cover [0, n), one per thread: at most `threads`, and each of at
/// least `least`, the work that is worth waking a thread for.
template <class F>
void over_range(int threads, int64_t n, int64_t least, const F& body) {
  const auto parts = static_cast<int>(std::clamp<int64_t>(n / std::max<int64_t>(1, least), 1, threads));
  run_parts(parts, [&](int part) { body(n * part / parts, n * (part + 1) / parts); });
}

}  // namespace trainctl::cpu
