// Steps that change values: colors, erased parts, classes and tokens.
#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/train/data/image/color_jitter.h"
#include "engine/train/data/sample_steps.h"

namespace trainctl {
namespace {

template <class T>
void erase(const PixelBox& box, ChannelOrder layout, T value, const SampleView& view, T* values) {
  const bool planes = layout == ChannelOrder::channels_first;
  const int64_t per_pixel = planes ? 1 : view.channels;
  for (int64_t plane = 0; plane < (planes ? view.channels : 1); ++plane)
    for (int64_t y = box.top; y < box.top + box.height; ++y)
      std::fill_n(values + ((plane * view.height + y) * view.width + box.left) * per_pixel, box.width * per_pixel,
                  value);
}

template <class T>
void set_ones(const T* classes, int64_t count, int64_t most, float* out) {
  std::fill_n(out, count * most, 0.0f);
  for (int64_t i = 0; i < count; ++i) {
    const auto which = static_cast<int64_t>(classes[i]);
    if (which < 0 || which >= most)
      throw EnvError(fmt::format("the data set contains class {}, but the {} classes of one_hot are numbered from 0",
                                 which, most));
    out[i * most + which] = 1.0f;
  }
}

}  // namespace

SampleStep make_color_jitter(const std::array<double, 4>& amounts) {
  return {.kind = SampleStep::Kind::in_place,
          .run = [amounts](SampleAtWork& sample, std::byte* values, SampleRng& rng, TransformScratch&) {
            change_colors(draw_color_change(amounts, rng), sample.view.height * sample.view.width,
                          reinterpret_cast<uint8_t*>(values));
          }};
}

SampleStep make_erasing(ElementType type, ChannelOrder layout, const Erasing& erasing) {
  return {.kind = SampleStep::Kind::in_place,
          .run = [=](SampleAtWork& sample, std::byte* values, SampleRng& rng, TransformScratch&) {
            const bool erases = rng.uniform() < erasing.chance;
            const PixelBox box = draw_erased_box(sample.size(), erasing.scale, erasing.ratio, rng);
            if (!erases) return;
            if (type == ElementType::u8) {
              erase(box, layout, static_cast<uint8_t>(erasing.value), sample.view, reinterpret_cast<uint8_t*>(values));
            } else {
              erase(box, layout, static_cast<float>(erasing.value), sample.view, reinterpret_cast<float*>(values));
            }
          }};
}

SampleStep make_one_hot(ElementType from, int64_t classes) {
  return {.kind = SampleStep::Kind::write,
          .run =
              [from, classes](SampleAtWork& sample, std::byte* out, SampleRng&, TransformScratch&) {
                SampleView& view = sample.view;
                const int64_t count = view.height * view.width * view.channels;
                auto* to = reinterpret_cast<float*>(out);
                if (from == ElementType::u8) {
                  set_ones(static_cast<const uint8_t*>(view.data), count, classes, to);
                } else {
                  set_ones(static_cast<const int32_t*>(view.data), count, classes, to);
                }
                view = {out, 1, count * classes, 1, count * classes};
              },
          .bytes =
              [classes](const SampleAtWork& sample) {
                return sample.view.height * sample.view.width * sample.view.channels * classes * 4;
              }};
}

SampleStep make_tokens(int64_t length, int32_t filler) {
  return {.kind = SampleStep::Kind::write,
          .run =
              [length, filler](SampleAtWork& sample, std::byte* out, SampleRng&, TransformScratch&) {
                auto* to = reinterpret_cast<int32_t*>(out);
                const int64_t count = std::min(length, sample.view.width);
                convert(static_cast<const uint8_t*>(sample.view.data), count, to);
                std::fill_n(to + count, length - count, filler);
                sample.view = {out, 1, length, 1, length};
              },
          .bytes = [length](const SampleAtWork&) { return length * 4; }};
}

}  // namespace trainctl
