// The division of the weight gradient of a convolution into tiles for tensor cores (conv_tiles_cuda.cu). Plain
// functions.
#pragma once

#include <optional>

#include "engine/graph/dtype.h"
#include "engine/ops/conv2d/conv_shape.h"

namespace trainctl {

/// A block of threads computes rows x kColumns of the result, from kDepth windows at a time.
inline constexpr int64_t kTileColumns = 128, kTileDepth = 32;
/// Blocks per multiprocessor.
inline constexpr int64_t kTileBlocks = 2;

/// The result of each group is [outputs, window pixels x channels].
struct ConvTiles {
  int64_t x_channels = 0, y_channels = 0;  ///< channels of the images as read: more than they have if padded
  bool x_copied = false, y_copied = false;
  int64_t vector = 8;  ///< channels of one copy to shared memory
  int64_t rows = 128;  ///< rows of a tile: 64 or 128
  /// Slices of the batch: copies of all images would take too much memory.
  int64_t slices = 1;
  int64_t parts = 1;                               ///< parts of the windows of a slice
  int64_t of_part = 0;                             ///< windows per part, a multiple of kTileDepth
  int64_t x_room = 0, y_room = 0, part_bytes = 0;  ///< scratch memory: copies of a slice, and each part's sums

  int64_t scratch() const { return x_room + y_room + slices * parts * part_bytes; }
};

/// Returns nothing if tiles cannot compute it: other types, channels first, narrow groups, 2^31 windows.
/// `aligned`: the images begin at multiples of 16 bytes.
std::optional<ConvTiles> tiles_of(const ConvShape& s, DType type, bool x_aligned, bool y_aligned,
                                  int64_t multiprocessors);

}  // namespace trainctl
