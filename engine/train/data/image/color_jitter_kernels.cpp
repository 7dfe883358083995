// Pixels are handled in blocks: their channels are split into rows of f32, changed, and rounded.
#include <algorithm>
#include <cmath>

#include "engine/train/data/image/color_jitter.h"
#include "engine/train/data/image/formats.h"

namespace trainctl {
namespace {

constexpr int64_t kJitterBlock = 256;

struct JitterBlock {
  float red[kJitterBlock], green[kJitterBlock], blue[kJitterBlock];
};

uint8_t rounded_channel(float value) {
  return static_cast<uint8_t>(static_cast<int32_t>(std::clamp(value, 0.0f, 255.0f) + 0.5f));
}

void split_planes(const uint8_t* __restrict rgb, int64_t pixels, JitterBlock& __restrict block) {
  for (int64_t i = 0; i < pixels; ++i) {
    block.red[i] = rgb[3 * i];
    block.green[i] = rgb[3 * i + 1];
    block.blue[i] = rgb[3 * i + 2];
  }
}

void join_planes(const JitterBlock& __restrict block, int64_t pixels, uint8_t* __restrict rgb) {
  for (int64_t i = 0; i < pixels; ++i) {
    rgb[3 * i] = rounded_channel(block.red[i]);
    rgb[3 * i + 1] = rounded_channel(block.green[i]);
    rgb[3 * i + 2] = rounded_channel(block.blue[i]);
  }
}

void blend(float factor, float other, int64_t values, uint8_t* x) {
  const float shift = (1.0f - factor) * other;
  for (int64_t i = 0; i < values; ++i) x[i] = rounded_channel(static_cast<float>(x[i]) * factor + shift);
}

float mean_luma(const uint8_t* rgb, int64_t pixels) {
  int64_t sum = 0;
  for (int64_t i = 0; i < pixels; ++i) sum += luma(rgb[3 * i], rgb[3 * i + 1], rgb[3 * i + 2]);
  return static_cast<float>(static_cast<double>(sum) / static_cast<double>(pixels));
}

void saturate(float factor, int64_t pixels, JitterBlock& block) {
  for (int64_t i = 0; i < pixels; ++i) {
    const float red = block.red[i], green = block.green[i], blue = block.blue[i];
    const float grey = (1.0f - factor) * (0.299f * red + 0.587f * green + 0.114f * blue);
    block.red[i] = factor * red + grey;
    block.green[i] = factor * green + grey;
    block.blue[i] = factor * blue + grey;
  }
}

/// With hue h in sixths of the circle: red, green and blue are most - chroma * share(5 + h, 3 + h, 1 + h).
float channel(float most, float chroma, float at) {
  at = at >= 6.0f ? at - 6.0f : at;
  at = at >= 6.0f ? at - 6.0f : at;
  return most - chroma * std::max(0.0f, std::min(std::min(at, 4.0f - at), 1.0f));
}

void turn_hue(float sixths, int64_t pixels, JitterBlock& block) {
  for (int64_t i = 0; i < pixels; ++i) {
    const float red = block.red[i], green = block.green[i], blue = block.blue[i];
    const float most = std::max(std::max(red, green), blue), chroma = most - std::min(std::min(red, green), blue);
    const float per = chroma > 0.0f ? 1.0f / chroma : 0.0f;
    const float of_blue = 4.0f + (red - green) * per, of_green = 2.0f + (blue - red) * per,
                of_red = (green - blue) * per;
    float hue = (most == red ? of_red : most == green ? of_green : of_blue) + sixths;  // in [-4, 8]
    hue = hue < 0.0f ? hue + 6.0f : hue;
    hue = hue >= 6.0f ? hue - 6.0f : hue;
    block.red[i] = channel(most, chroma, 5.0f + hue);
    block.green[i] = channel(most, chroma, 3.0f + hue);
    block.blue[i] = channel(most, chroma, 1.0f + hue);
  }
}

}  // namespace

void change_colors(const ColorChange& change, int64_t pixels, uint8_t* rgb) {
  JitterBlock block;
  for (const ColorChange::Kind kind : change.order) {
    const float factor = change.factors[kind];
    if (factor == (kind == ColorChange::hue ? 0.0f : 1.0f)) continue;
    if (kind == ColorChange::brightness) blend(factor, 0.0f, 3 * pixels, rgb);
    if (kind == ColorChange::contrast) blend(factor, mean_luma(rgb, pixels), 3 * pixels, rgb);
    if (kind != ColorChange::saturation && kind != ColorChange::hue) continue;
    for (int64_t at = 0; at < pixels; at += kJitterBlock) {
      const int64_t some = std::min(kJitterBlock, pixels - at);
      split_planes(rgb + 3 * at, some, block);
      if (kind == ColorChange::saturation) {
        saturate(factor, some, block);
      } else {
        turn_hue(6.0f * factor, some, block);
      }
      join_planes(block, some, rgb + 3 * at);
    }
  }
}

}  // namespace trainctl
