// Steps that a chain of transforms is composed of.
#include "engine/train/data/sample_steps.h"

#include <algorithm>
#include <cstring>

#include "engine/base/error.h"

namespace trainctl {
namespace {

const std::byte* row_of(const SampleView& view, int64_t element_bytes, int64_t y) {
  return static_cast<const std::byte*>(view.data) + y * view.stride * element_bytes;
}

SampleView dense(const void* data, int64_t height, int64_t width, int64_t channels) {
  return {data, height, width, channels, width * channels};
}

int64_t elements_of(const SampleView& view) { return view.height * view.width * view.channels; }

/// Converts a box of the sample to the columns as they are stored, which may be reversed.
PixelBox stored(const SampleAtWork& sample, PixelBox box) {
  if (sample.is_reversed) box.left = sample.view.width - box.left - box.width;
  return box;
}

/// Converts a sample of From values to To values in `out`, with its layout, its flip and its per-pixel operations in
/// one pass over the rows.
template <class From, class To>
void run_pass(const PixelPass& pass, SampleAtWork& sample, TransformScratch& scratch, To* out) {
  const SampleView in = sample.view;
  const int64_t plane = in.height * in.width, row_values = in.width * in.channels;
  const auto ops_on_row = [&](int64_t c, To* row, int64_t count) {
    if constexpr (std::is_same_v<To, float>)
      for (const PixelOp& op : pass.ops) apply(op, c, count, row);
  };
  if (pass.from_layout == ChannelOrder::channels_first) {
    const auto* from = static_cast<const From*>(in.data);
    for (int64_t c = 0; c < in.channels; ++c) {
      convert(from + c * plane, plane, out + c * plane);
      ops_on_row(c, out + c * plane, plane);
    }
  } else {
    if (sample.is_reversed) scratch.row.resize(static_cast<size_t>(row_values) * sizeof(From));
    for (int64_t y = 0; y < in.height; ++y) {
      const std::byte* bytes = row_of(in, sizeof(From), y);
      if (sample.is_reversed) {
        reverse_pixels(bytes, in.width, in.channels * static_cast<int64_t>(sizeof(From)), scratch.row.data());
        bytes = scratch.row.data();
      }
      const auto* row = reinterpret_cast<const From*>(bytes);
      if (pass.to_layout == ChannelOrder::channels_first) {
        split_channels(row, in.width, in.channels, plane, out + y * in.width);
        for (int64_t c = 0; c < in.channels; ++c) ops_on_row(c, out + c * plane + y * in.width, in.width);
      } else {
        To* to = out + y * row_values;
        convert(row, row_values, to);
        if constexpr (std::is_same_v<To, float>)
          for (const PixelOp& op : pass.ops) apply_to_pixels(op, in.channels, in.width, to);
      }
    }
  }
  sample.view = dense(out, in.height, in.width, in.channels);
  sample.is_reversed = false;
}

template <class T>
void cut(SampleAtWork& sample, T value, T* out) {
  const SampleView& in = sample.view;
  const PixelBox box = stored(sample, sample.box);
  const int64_t row_values = box.width * in.channels;
  const int64_t first = std::clamp<int64_t>(-box.left, 0, box.width);
  const int64_t end = std::clamp<int64_t>(in.width - box.left, first, box.width);
  T* to = out;
  for (int64_t y = box.top; y < box.top + box.height; ++y, to += row_values) {
    if (y < 0 || y >= in.height) {
      std::fill_n(to, row_values, value);
      continue;
    }
    const auto* row = reinterpret_cast<const T*>(row_of(in, sizeof(T), y));
    std::fill_n(to, first * in.channels, value);
    if (end > first)
      std::copy_n(row + (box.left + first) * in.channels, (end - first) * in.channels, to + first * in.channels);
    std::fill_n(to + end * in.channels, (box.width - end) * in.channels, value);
  }
  sample.view = dense(out, box.height, box.width, in.channels);
}

template <class T>
Pixels<T> pixels_of(const SampleView& view) {
  return {static_cast<const T*>(view.data), view.height, view.width, view.channels, view.stride};
}

template <class T>
void resize(SampleAtWork& sample, Resample method, const ImageSize& size, TransformScratch& scratch, std::byte* out) {
  const Pixels<T> in = pixels_of<T>(sample.view);
  const SourceBox whole{0, 0, static_cast<double>(in.height), static_cast<double>(in.width)};
  const SourceBox box = sample.decoded.value_or(whole);
  if (method == Resample::bilinear) {
    interpolate(in, box, size, scratch.resample, reinterpret_cast<float*>(out));
  } else {
    resample(method, in, box, size, scratch.resample, reinterpret_cast<T*>(out));
  }
  sample.view = dense(out, size.height, size.width, in.channels);
  sample.decoded.reset();
}

}  // namespace

SampleStep make_pass(PixelPass pass) {
  check(pass.to == pass.from ? pass.ops.empty() || pass.to == ElementType::f32 : pass.to == ElementType::f32,
        "a pass computes in f32");
  return {.kind = SampleStep::Kind::write,
          .run =
              [pass](SampleAtWork& sample, std::byte* out, SampleRng&, TransformScratch& scratch) {
                auto* floats = reinterpret_cast<float*>(out);
                if (pass.from == ElementType::u8 && pass.to == ElementType::u8) {
                  run_pass<uint8_t>(pass, sample, scratch, reinterpret_cast<uint8_t*>(out));
                } else if (pass.from == ElementType::u8) {
                  run_pass<uint8_t>(pass, sample, scratch, floats);
                } else if (pass.from == ElementType::f32) {
                  run_pass<float>(pass, sample, scratch, floats);
                } else if (pass.to == ElementType::i32) {
                  run_pass<int32_t>(pass, sample, scratch, reinterpret_cast<int32_t*>(out));
                } else {
                  run_pass<int32_t>(pass, sample, scratch, floats);
                }
              },
          .bytes = [to = pass.to](const SampleAtWork& sample) { return elements_of(sample.view) * byte_size(to); }};
}

SampleStep make_crop(std::function<PixelBox(const ImageSize&, SampleRng&)> choose, int64_t element_bytes) {
  return {.run =
              [element_bytes](SampleAtWork& sample, std::byte*, SampleRng&, TransformScratch&) {
                const PixelBox box = stored(sample, sample.box);
                SampleView& view = sample.view;
                view.data = row_of(view, element_bytes, box.top) + box.left * view.channels * element_bytes;
                view.height = box.height;
                view.width = box.width;
              },
          .choose = std::move(choose)};
}

SampleStep make_cut(ElementType type, double value, std::function<PixelBox(const ImageSize&, SampleRng&)> choose) {
  return {.kind = SampleStep::Kind::write,
          .run =
              [type, value](SampleAtWork& sample, std::byte* out, SampleRng&, TransformScratch&) {
                if (type == ElementType::u8) {
                  cut(sample, static_cast<uint8_t>(value), reinterpret_cast<uint8_t*>(out));
                } else if (type == ElementType::i32) {
                  cut(sample, static_cast<int32_t>(value), reinterpret_cast<int32_t*>(out));
                } else {
                  cut(sample, static_cast<float>(value), reinterpret_cast<float*>(out));
                }
              },
          .bytes =
              [type](const SampleAtWork& sample) {
                return sample.box.height * sample.box.width * sample.view.channels * byte_size(type);
              },
          .choose = std::move(choose)};
}

SampleStep make_flip(double chance) {
  return {.run = [chance](SampleAtWork& sample, std::byte*, SampleRng& rng, TransformScratch&) {
    if (rng.uniform() < chance) sample.is_reversed = !sample.is_reversed;
  }};
}

SampleStep make_resize(ElementType from, Resample method, const ImageSize& size, bool may_scale) {
  const int64_t element_bytes = method == Resample::bilinear ? 4 : byte_size(from);
  SampleStep step{
      .kind = SampleStep::Kind::write,
      .run =
          [from, method, size](SampleAtWork& sample, std::byte* out, SampleRng&, TransformScratch& scratch) {
            if (from == ElementType::u8) {
              resize<uint8_t>(sample, method, size, scratch, out);
            } else {
              resize<float>(sample, method, size, scratch, out);
            }
          },
      .bytes =
          [size, element_bytes](const SampleAtWork& sample) {
            return size.height * size.width * sample.view.channels * element_bytes;
          }};
  if (may_scale) step.shrinks_to = size;
  return step;
}

SampleStep make_integers(ElementType from) {
  return {.kind = SampleStep::Kind::write,
          .run =
              [from](SampleAtWork& sample, std::byte* out, SampleRng&, TransformScratch&) {
                SampleView& view = sample.view;
                auto* to = reinterpret_cast<int32_t*>(out);
                if (from == ElementType::u8) {
                  to_integers(static_cast<const uint8_t*>(view.data), elements_of(view), to);
                } else {
                  to_integers(static_cast<const float*>(view.data), elements_of(view), to);
                }
                view = dense(out, view.height, view.width, view.channels);
              },
          .bytes = [](const SampleAtWork& sample) { return elements_of(sample.view) * 4; }};
}

}  // namespace trainctl
