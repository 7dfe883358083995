// The ways to give a convolution to cuDNN, which has no engine for some sizes within the workspace that a plan shows:
// in slices of the batch, with channels padded with zeros.
#include "engine/ops/conv2d/conv_ways.h"

#include <charconv>

namespace trainctl {
namespace {

constexpr const char *kPadded = "+padded", *kRounded = "+rounded", *kFused = "+fused";

int64_t rounded_up_to(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

std::string to_string(const ConvWay& way) {
  return std::to_string(way.slices) + (way.padded ? kPadded : "") + (way.rounded ? kRounded : "") +
         (way.fused ? kFused : "");
}

ConvWay parse_way(const std::string& text) {
  ConvWay way{.slices = 0};
  std::from_chars(text.data(), text.data() + text.size(), way.slices);
  way.padded = text.find(kPadded) != std::string::npos;
  way.rounded = text.find(kRounded) != std::string::npos;
  way.fused = text.find(kFused) != std::string::npos;
  return way.slices > 0 && to_string(way) == text ? way : ConvWay{.slices = 0};
}

int64_t channel_unit(DType dtype, bool tf32) {
  if (is_half(dtype)) return 8;
  return tf32 ? 4 : 1;
}

bool can_pad(const ConvShape& s, int64_t unit) {
  return s.channels_last && s.groups == 1 && (s.x.c % unit != 0 || s.y.c % unit != 0);
}

std::vector<int64_t> slice_counts(int64_t n) {
  std::vector<int64_t> counts;
  for (int64_t count = 1; count <= n; ++count) {
    if (n % count == 0 && (counts.empty() || count >= 2 * counts.back())) counts.push_back(count);
  }
  return counts;
}

ConvShape call_of(const ConvShape& s, const ConvWay& way, int64_t unit) {
  ConvShape call = s;
  call.x.n = call.y.n = s.x.n / way.slices;
  if (!way.padded) return call;
  call.x.c = rounded_up_to(s.x.c, unit);
  call.y.c = rounded_up_to(s.y.c, unit);
  return call;
}

int64_t most_conv_scratch(const Shape& weight) {
  const int64_t most_padding = 8;
  const int64_t padded =
      rounded_up_to(weight[0], most_padding) * rounded_up_to(weight[1], most_padding) * weight[2] * weight[3];
  return kMostCudnnWorkspace + 2 * conv_room(4 * padded);
}

}  // namespace trainctl
