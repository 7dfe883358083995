// The division of the weight gradient of a convolution into tiles for tensor cores (conv_tiles_cuda.cu).
#include "engine/ops/conv2d/conv_tiles.h"

#include <algorithm>

#include "engine/ops/conv2d/conv_ways.h"

namespace trainctl {
namespace {

constexpr int64_t kMostCopies = kMostCudnnWorkspace / 4 * 3;
constexpr int64_t kMostIndex = int64_t{1} << 31;

int64_t up_to(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// The number of parts into which the windows are divided so that the estimated time is least: enough blocks for all
/// multiprocessors in whole waves (`at_once` blocks run at once), but few partial sums to write and read. The unit of
/// time is one step of a block through kTileDepth windows, about 0.9 us, in which 3.7 MB can be moved. `steps`: steps
/// through all windows; `part_bytes`: size of the sums of one part.
int64_t fastest_parts(int64_t tiles, int64_t steps, int64_t most, int64_t part_bytes, int64_t at_once) {
  constexpr double kStepsToStart = 8, kBytesOfStep = 3.7e6;
  int64_t best = 1;
  double best_time = 0;
  for (int64_t parts = 1; parts <= std::min(most, steps); ++parts) {
    const int64_t of_part = ceil_div(steps, parts);
    if (ceil_div(steps, of_part) != parts) continue;  // some parts would be empty
    const double waves = static_cast<double>(ceil_div(tiles * parts, at_once));
    const double time = waves * (static_cast<double>(of_part) + kStepsToStart) +
                        2 * static_cast<double>(parts * part_bytes) / kBytesOfStep;
    if (parts > 1 && time >= best_time) continue;
    best = parts;
    best_time = time;
  }
  return best;
}

/// The number of rows of a tile, 64 or 128, with which the last tile wastes fewest rows.
int64_t tile_rows(int64_t rows) { return up_to(rows, 64) < up_to(rows, 128) ? 64 : 128; }

}  // namespace

std::optional<ConvTiles> tiles_of(const ConvShape& s, DType type, bool x_aligned, bool y_aligned,
                                  int64_t multiprocessors) {
  if (type != DType::bf16 || !s.channels_last || s.y.n * s.y.pixels() >= kMostIndex || s.x.pixels() >= kMostIndex)
    return std::nullopt;
  if (s.y.n == 0 || s.y.pixels() == 0 || s.x.c == 0 || s.y.c == 0) return std::nullopt;
  ConvTiles t;
  int64_t c = s.x.c / s.groups, k = s.y.c / s.groups;
  if (s.groups == 1) {
    c = c <= 4 ? 4 : c % 4 == 0 ? c : up_to(c, 8);
    k = up_to(k, 8);
  }
  if (c % 4 != 0 || k % 8 != 0) return std::nullopt;
  t.vector = c % 8 == 0 ? 8 : 4;
  t.x_channels = c * s.groups, t.y_channels = k * s.groups;
  t.x_copied = t.x_channels != s.x.c || !x_aligned;
  t.y_copied = t.y_channels != s.y.c || !y_aligned;
  const int64_t window = s.window.kernel[0] * s.window.kernel[1], cols = window * c;
  t.part_bytes = 4 * s.groups * k * cols;
  const auto room = [&](bool copied, const Images& i, int64_t channels) {
    return copied ? conv_room(2 * i.n / t.slices * i.pixels() * channels) : 0;
  };
  bool fits = false;
  for (const int64_t slices : slice_counts(s.x.n)) {
    t.slices = slices;
    t.x_room = room(t.x_copied, s.x, t.x_channels), t.y_room = room(t.y_copied, s.y, t.y_channels);
    if (fits = t.x_room + t.y_room <= kMostCopies; fits) break;
  }
  const int64_t most = (kMostCudnnWorkspace - t.x_room - t.y_room) / (t.part_bytes * t.slices);
  if (!fits || most < 1 || t.part_bytes / 4 >= kMostIndex) return std::nullopt;
  t.rows = tile_rows(k);
  const int64_t tiles = s.groups * ceil_div(k, t.rows) * ceil_div(cols, kTileColumns);
  const int64_t steps = ceil_div(s.y.n / t.slices * s.y.pixels(), kTileDepth);
  t.parts = fastest_parts(tiles, steps, std::min<int64_t>(most, 65535), t.part_bytes, kTileBlocks * multiprocessors);
  t.of_part = ceil_div(steps, t.parts) * kTileDepth;
  return t;
}

}  // namespace trainctl
