// Time of a kernel that was not measured, from the data sheets of a device. Tiles and waves: NVIDIA, "Matrix
// Multiplication Background User's Guide", sections on tile and wave quantization. The constants below follow from 88
// products that were measured on an H100 (tests/bench/measured/h100_pair.json): the mean error of the logarithm is 11
// %, without waves 19 %.
#include "engine/machine/unmeasured_time.h"

#include <algorithm>
#include <array>

namespace trainctl {
namespace {

/// The part of a matrix that a multiprocessor computes at a time, and how many times as long an element takes as in the
/// largest tiles.
struct Tile {
  int64_t rows, cols;
  double slower;
};
constexpr std::array kTiles = {Tile{256, 128, 1},  Tile{128, 256, 1},  Tile{128, 128, 1.05},
                               Tile{128, 64, 1.3}, Tile{64, 128, 1.3}, Tile{64, 64, 1.6}};
/// Fraction of the bytes that a product writes, and reads in addition to its factors, whose time is not hidden.
constexpr double kNotHidden = 0.5;

int64_t parts(int64_t size, int64_t of) { return (size + of - 1) / of; }

/// Time of the products in the best tiles, relative to their time at the full rate.
double quantized(const WrittenMatrices& written, int multiprocessors) {
  double best = 0;
  for (const Tile& tile : kTiles) {
    const int64_t tiles = written.count * parts(written.rows, tile.rows) * parts(written.cols, tile.cols);
    const double computed = static_cast<double>(parts(tiles, multiprocessors) * multiprocessors) *
                            static_cast<double>(tile.rows * tile.cols) * tile.slower;
    if (best == 0 || computed < best) best = computed;
  }
  const double needed = static_cast<double>(written.count * written.rows) * static_cast<double>(written.cols);
  return std::max(1.0, best / std::max(needed, 1.0));
}

double factor_bytes(Infos inputs) { return static_cast<double>(bytes_of(inputs[0]) + bytes_of(inputs[1])); }

}  // namespace

Seconds unmeasured_time(const Machine& machine, const KernelDef& kernel, Infos inputs, Infos outputs, const Cost& cost,
                        FlopsPerSecond products) {
  const Seconds bytes = Bytes{cost.bytes} / machine.memory_rate;
  Seconds computes = Flops{cost.flops} / products;
  if (machine.multiprocessors > 0 && kernel.written != nullptr) {
    const Bytes beside{std::max(cost.bytes - factor_bytes(inputs), 0.0)};
    computes = quantized(kernel.written(inputs, outputs), machine.multiprocessors) * computes +
               kNotHidden * beside / machine.memory_rate;
  }
  if (machine.exponentials_per_second > 0) computes += Seconds{cost.exponentials / machine.exponentials_per_second};
  return std::max(computes, bytes);
}

}  // namespace trainctl
