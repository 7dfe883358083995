// Register tiles for 16 vector registers of 4 floats, in instructions that every processor has.
namespace trainctl::cpu {
namespace {
constexpr int kLanes = 4;
constexpr int kRows = 4;      // x 2 vectors: 8 sums, 2 of B, 1 of A
constexpr int kWideRows = 2;  // x 4 vectors
constexpr int kDotRows = 2;   // x 4
}  // namespace
}  // namespace trainctl::cpu

#include "engine/ops/matmul/tiles.h"

namespace trainctl::cpu {

const Tiles& tiles_of_fours() { return kTileKernels; }

}  // namespace trainctl::cpu
