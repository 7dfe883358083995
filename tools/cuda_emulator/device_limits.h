// Limits of the emulated H200.
#pragma once

#include <cstddef>
#include <limits>

namespace trainctl::emulator {

/// A test may have fewer, so that small operands use the paths of large ones.
inline int multiprocessors = 132;
/// The driver reports at most this many clusters of blocks that run at once.
inline int most_clusters = std::numeric_limits<int>::max();
inline constexpr size_t kMostSharedOfBlock = 227 * 1024, kSharedOfMultiprocessor = 228 * 1024;
inline constexpr size_t kMemory = size_t{139} << 30;
/// PTX does not say how many registers a kernel uses; assume this many.
inline constexpr int kRegistersOfThread = 64;

}  // namespace trainctl::emulator
