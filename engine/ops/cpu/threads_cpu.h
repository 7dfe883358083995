// Fork and join for kernels that use more than one thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace trainctl::cpu {

/// Calls body(context, part) for each part in [0, parts), part 0 on this thread. Each calling thread has its own
/// workers, started by start_workers(), which executors call before the first step, or on first use; one part needs
/// none. `body` must not throw.
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

/// The least elements of an element-wise kernel per thread: for fewer, waking a thread takes longer than the work.
inline constexpr int64_t kElementsPerThread = 1 << 14;

/// over_range for the elements of an element-wise kernel: ranges begin at multiples of a cache line.
template <class F>
void over_elements(int threads, int64_t n, const F& body) {
  constexpr int64_t kLine = 16;
  over_range(threads, (n + kLine - 1) / kLine, kElementsPerThread / kLine,
             [&](int64_t begin, int64_t end) { body(begin * kLine, std::min(n, end * kLine)); });
}

/// over_range for `rows` rows of n elements each.
template <class F>
void over_rows(int threads, int64_t rows, int64_t n, const F& body) {
  over_range(threads, rows, kElementsPerThread / std::max<int64_t>(1, n), body);
}

/// Calls f(row) for each of `rows` rows of n elements.
template <class F>
void each_row(int threads, int64_t rows, int64_t n, const F& f) {
  over_rows(threads, rows, n, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) f(row);
  });
}

}  // namespace trainctl::cpu
