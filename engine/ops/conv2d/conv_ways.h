// The ways to give a convolution to cuDNN, which has no engine for some sizes within the workspace that a plan shows:
// in slices of the batch, with channels padded with zeros. Plain functions: conv_library_cuda.cpp follows them, and a
// plan shows the scratch memory that they may need.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/dtype.h"
#include "engine/ops/conv2d/conv_shape.h"
#include "engine/ops/cuda/cuda_scratch.h"

namespace trainctl {

struct ConvWay {
  int64_t slices = 1;   ///< slices of the batch, one call each; their weight gradients are added in f32, in order
  bool padded = false;  ///< the channels of x and y are padded, in copies
  /// A weight gradient of bf16 images, made in bf16 and then widened: where the library has no engine that makes it in
  /// f32.
  bool rounded = false;
  bool fused = false;  ///< the call also computes bias and relu

  bool operator==(const ConvWay&) const = default;
};
/// The number of slices and the flags as text, such as "1", "4+padded", "1+fused" or "2+padded+rounded".
std::string to_string(const ConvWay& way);
/// Parses text that to_string wrote. For any other text, the result has 0 slices.
ConvWay parse_way(const std::string& text);

/// Channels-last engines for tensor cores read 16 bytes at a time: the channels must be a multiple of this.
int64_t channel_unit(DType dtype, bool tf32);

/// Returns whether padding the channels makes a difference.
bool can_pad(const ConvShape& s, int64_t unit);

/// The numbers of slices to try, in order: 1 first, then divisors of n, each at least twice the one before, up to n.
std::vector<int64_t> slice_counts(int64_t n);

/// The convolution that one call of the library computes.
ConvShape call_of(const ConvShape& s, const ConvWay& way, int64_t unit);

/// Scratch memory is handed out in multiples of this.
inline constexpr int64_t kConvAlignment = 256;
inline int64_t conv_room(int64_t bytes) { return (bytes + kConvAlignment - 1) / kConvAlignment * kConvAlignment; }

/// The most scratch memory that a convolution may need, for a weight of this shape: the copies of images and the
/// library's workspace, or the partial sums of the engine's own kernel; and the weight twice, in f32 and padded.
int64_t most_conv_scratch(const Shape& weight);

}  // namespace trainctl
