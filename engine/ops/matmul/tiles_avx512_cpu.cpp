// Register tiles for 32 vector registers of 16 floats. Compiled for x86-64-v4; runs only if the processor supports it.
// tiles.h, included below, defines the kernels for these sizes.
namespace trainctl::cpu {
namespace {
constexpr int kLanes = 16;
constexpr int kRows = 14;     // x 2 vectors: 28 sums, 2 of B, 1 of A
constexpr int kWideRows = 6;  // x 4 vectors
constexpr int kDotRows = 4;   // x 4
}  // namespace
}  // namespace trainctl::cpu

#include "engine/ops/matmul/tiles.h"

namespace trainctl::cpu {

#if defined(__AVX512F__)
const Tiles* tiles_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                 __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("avx512cd")
             ? &kTileKernels
             : nullptr;
}
#else
const Tiles* tiles_avx512() { return nullptr; }
#endif

}  // namespace trainctl::cpu
