// Register tiles for 16 vector registers of 8 floats.
// tiles.h, included below, defines the kernels for these sizes.
namespace trainctl::cpu {
namespace {
constexpr int kLanes = 8;
constexpr int kRows = 6;      // x 2 vectors: 12 sums, 2 of B, 1 of A
constexpr int kWideRows = 3;  // x 4 vectors
constexpr int kDotRows = 2;   // x 4
}  // namespace
}  // namespace trainctl::cpu

#include "engine/ops/matmul/tiles.h"

namespace trainctl::cpu {

#if defined(__AVX2__) && defined(__FMA__)
const Tiles* tiles_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kTileKernels : nullptr;
}
#else
const Tiles* tiles_avx2() { return nullptr; }
#endif

}  // namespace trainctl::cpu
