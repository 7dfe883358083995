// Fork and join for kernels that use more than one thread.
#pragma once

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

}  // namespace trainctl::cpu
