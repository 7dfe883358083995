// See the header for what each transform does.
#include "engine/train/data/transforms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/base/error.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

[[noreturn]] void fail(const TransformSpec& spec, const std::string& message, const std::string& hint = {}) {
  throw SpecError({}, spec.path, spec.name + ": " + message, hint);
}

/// A parameter given as a number or as a list of numbers.
std::vector<double> numbers(const TransformSpec& spec, std::string_view name) {
  for (const auto& [key, value] : spec.attrs) {
    if (key != name) continue;
    if (const auto* v = std::get_if<std::vector<double>>(&value)) return *v;
    if (const auto* v = std::get_if<Ints>(&value)) return {v->begin(), v->end()};
    if (const auto* v = std::get_if<double>(&value)) return {*v};
    if (const auto* v = std::get_if<int64_t>(&value)) return {static_cast<double>(*v)};
  }
  fail(spec, fmt::format("'{}' is missing", name));
}

/// The two input elements between which output element i of a resized dim is interpolated.
struct Tap {
  int64_t low, high;
  float weight;  ///< of high
};

std::vector<Tap> make_taps(int64_t in, int64_t out) {
  std::vector<Tap> taps;
  for (int64_t i = 0; i < out; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * static_cast<double>(in) / static_cast<double>(out) - 0.5;
    const double at = std::clamp(centre, 0.0, static_cast<double>(in - 1));
    const auto low = static_cast<int64_t>(at);
    taps.push_back({low, std::min(low + 1, in - 1), static_cast<float>(at - static_cast<double>(low))});
  }
  return taps;
}

void resize(const float* in, float* out, const std::vector<Tap>& rows, const std::vector<Tap>& cols, int64_t in_width,
            int64_t channels) {
  for (const Tap& row : rows) {
    const float* top = in + row.low * in_width * channels;
    const float* bottom = in + row.high * in_width * channels;
    for (const Tap& col : cols) {
      const int64_t left = col.low * channels, right = col.high * channels;
      for (int64_t c = 0; c < channels; ++c) {
        const float upper = top[left + c] + col.weight * (top[right + c] - top[left + c]);
        const float lower = bottom[left + c] + col.weight * (bottom[right + c] - bottom[left + c]);
        *out++ = upper + row.weight * (lower - upper);
      }
    }
  }
}

/// Cuts [height, width] of an image, from (top, left), which may be outside; zeros there.
void crop(const float* in, float* out, const Shape& image, int64_t top, int64_t left, int64_t height, int64_t width) {
  const int64_t channels = image[2];
  for (int64_t row = top; row < top + height; ++row, out += width * channels) {
    if (row < 0 || row >= image[0]) {
      std::fill_n(out, width * channels, 0.0f);
      continue;
    }
    const int64_t first = std::clamp<int64_t>(-left, 0, width), end = std::clamp<int64_t>(image[1] - left, first, width);
    std::fill_n(out, first * channels, 0.0f);
    std::copy_n(in + (row * image[1] + left + first) * channels, (end - first) * channels, out + first * channels);
    std::fill_n(out + end * channels, (width - end) * channels, 0.0f);
  }
}

}  // namespace

bool has_random_transforms(const std::vector<TransformSpec>& specs) {
  return std::any_of(specs.begin(), specs.end(), [](const TransformSpec& spec) {
    return spec.name == "random_crop" || spec.name == "horizontal_flip";
  });
}

Transforms::Transforms(const std::vector<TransformSpec>& specs, const Shape& shape)
    : shape_(shape), most_elements_(num_elements(shape)) {
  for (const TransformSpec& spec : specs) {
    if (to_integer_) fail(spec, "comes after type_cast i32, which must come last");
    add(spec);
    if (num_elements(shape_) > kMaxImageElements) {
      fail(spec, fmt::format("makes samples of {}, {}", to_string(shape_), format_bytes(4 * num_elements(shape_))),
           fmt::format("a sample has at most {}", format_bytes(4 * kMaxImageElements)));
    }
    most_elements_ = std::max(most_elements_, num_elements(shape_));
  }
}

void Transforms::add(const TransformSpec& spec) {
  if (spec.name == "resize") {
    add_resize(spec);
  } else if (spec.name == "center_crop") {
    add_center_crop(spec);
  } else if (spec.name == "random_crop") {
    add_random_crop(spec);
  } else if (spec.name == "horizontal_flip") {
    add_horizontal_flip(spec);
  } else if (spec.name == "rescale") {
    const auto scale = static_cast<float>(spec.attrs.number("scale", 1.0));
    const auto shift = static_cast<float>(spec.attrs.number("shift", 0.0));
    steps_.push_back({[scale, shift, n = num_elements(shape_)](const float* in, float* out, SampleRng&) {
                        for (int64_t i = 0; i < n; ++i) out[i] = in[i] * scale + shift;
                      },
                      true});
  } else if (spec.name == "normalize") {
    add_normalize(spec);
  } else if (spec.name == "hwc2chw") {
    add_hwc2chw(spec);
  } else if (spec.name == "type_cast") {
    const std::string dtype = spec.attrs.text("dtype");
    if (dtype != "f32" && dtype != "i32") fail(spec, fmt::format("'{}' is not a data type", dtype), "f32 or i32");
    to_integer_ = dtype == "i32";
  } else {
    fail(spec, "there is no such transform",
         "resize, center_crop, random_crop, horizontal_flip, rescale, normalize, hwc2chw, type_cast");
  }
}

void Transforms::require_image(const TransformSpec& spec) const {
  if (shape_.size() == 3 && !channels_first_) return;
  fail(spec, fmt::format("needs an image [h, w, c], the sample is {}", to_string(shape_)),
       channels_first_ ? "put it before hwc2chw" : "");
}

void Transforms::add_center_crop(const TransformSpec& spec) {
  require_image(spec);
  const Ints size = spec.attrs.ints("size");
  const int64_t rest_down = shape_[0] - size[0], rest_across = shape_[1] - size[1];
  // Rounded down, also below 0.
  const int64_t top = (rest_down - (rest_down < 0 ? 1 : 0)) / 2, left = (rest_across - (rest_across < 0 ? 1 : 0)) / 2;
  steps_.push_back({[image = shape_, size, top, left](const float* in, float* out, SampleRng&) {
                      crop(in, out, image, top, left, size[0], size[1]);
                    },
                    false});
  shape_ = {size[0], size[1], shape_[2]};
}

void Transforms::add_random_crop(const TransformSpec& spec) {
  require_image(spec);
  const Ints size = spec.attrs.ints("size");
  const int64_t padding = spec.attrs.integer("padding");
  const int64_t down = shape_[0] + 2 * padding - size[0], across = shape_[1] + 2 * padding - size[1];
  if (down < 0 || across < 0)
    fail(spec, fmt::format("cuts {} of an image of {}", to_string(size), to_string(shape_)),
         fmt::format("padding: {}, or resize before it", padding + (std::max(-down, -across) + 1) / 2));
  steps_.push_back({[image = shape_, size, padding, down, across](const float* in, float* out, SampleRng& rng) {
                      const int64_t top = rng.integer(down + 1) - padding;
                      const int64_t left = rng.integer(across + 1) - padding;
                      crop(in, out, image, top, left, size[0], size[1]);
                    },
                    false});
  shape_ = {size[0], size[1], shape_[2]};
}

void Transforms::add_horizontal_flip(const TransformSpec& spec) {
  require_image(spec);
  const double p = spec.attrs.number("p");
  steps_.push_back({[image = shape_, p](const float* in, float* out, SampleRng& rng) {
                      const bool flip = rng.uniform() < p;
                      const int64_t width = image[1], channels = image[2];
                      for (int64_t row = 0; row < image[0]; ++row, in += width * channels) {
                        for (int64_t x = 0; x < width; ++x, out += channels)
                          std::copy_n(in + (flip ? width - 1 - x : x) * channels, channels, out);
                      }
                    },
                    false});
}

void Transforms::add_resize(const TransformSpec& spec) {
  const Ints size = spec.attrs.ints("size");
  require_image(spec);
  if (size.size() != 2 || size[0] < 1 || size[1] < 1) {
    fail(spec, fmt::format("{} is not an image size", to_string(size)), "[height, width], both at least 1");
  }
  const int64_t width = shape_[1], channels = shape_[2];
  if (size[0] != shape_[0] || size[1] != width) {
    steps_.push_back({[rows = make_taps(shape_[0], size[0]), cols = make_taps(width, size[1]), width, channels](
                          const float* in, float* out, SampleRng&) { resize(in, out, rows, cols, width, channels); },
                      false});
  }
  shape_ = {size[0], size[1], channels};
}

void Transforms::add_normalize(const TransformSpec& spec) {
  const std::vector<double> mean = numbers(spec, "mean"), deviation = numbers(spec, "std");
  const bool image = shape_.size() == 3;
  const int64_t channels = !image ? 1 : channels_first_ ? shape_[0] : shape_[2];
  for (const auto* values : {&mean, &deviation}) {
    if (values->size() != 1 && static_cast<int64_t>(values->size()) != channels) {
      fail(spec,
           fmt::format("mean and std have {} values, the sample {} has {} channels", values->size(), to_string(shape_),
                       channels),
           "one value, or one a channel");
    }
  }
  std::vector<float> shift, scale;
  for (int64_t c = 0; c < channels; ++c) {
    const double sd = deviation[deviation.size() == 1 ? 0 : static_cast<size_t>(c)];
    if (!(std::abs(sd) > 0)) fail(spec, "std is 0", "a positive number");
    shift.push_back(static_cast<float>(mean[mean.size() == 1 ? 0 : static_cast<size_t>(c)]));
    scale.push_back(static_cast<float>(1.0 / sd));
  }
  // Element i belongs to channel (i / inner) % channels.
  const int64_t inner = image && channels_first_ ? shape_[1] * shape_[2] : 1;
  steps_.push_back({[shift, scale, inner, channels, n = num_elements(shape_)](const float* in, float* out, SampleRng&) {
                      for (int64_t i = 0; i < n; ++i) {
                        const auto c = static_cast<size_t>((i / inner) % channels);
                        out[i] = (in[i] - shift[c]) * scale[c];
                      }
                    },
                    true});
}

void Transforms::add_hwc2chw(const TransformSpec& spec) {
  if (shape_.size() != 3 || channels_first_) {
    fail(spec, fmt::format("needs an image [h, w, c], the sample is {}", to_string(shape_)),
         channels_first_ ? "hwc2chw may appear only once" : "");
  }
  const int64_t pixels = shape_[0] * shape_[1], channels = shape_[2];
  if (channels > 1) {
    steps_.push_back({[pixels, channels](const float* in, float* out, SampleRng&) {
                        for (int64_t c = 0; c < channels; ++c) {
                          for (int64_t i = 0; i < pixels; ++i) *out++ = in[i * channels + c];
                        }
                      },
                      false});
  }
  shape_ = {channels, shape_[0], shape_[1]};
  channels_first_ = true;
}

const void* Transforms::apply(float* scratch, SampleRng& rng) const {
  float* at = scratch;
  float* other = scratch + most_elements_;
  for (const Bound& step : steps_) {
    step.run(at, step.in_place ? at : other, rng);
    if (!step.in_place) std::swap(at, other);
  }
  if (to_integer_) {
    for (int64_t i = 0, n = num_elements(shape_); i < n; ++i) {
      const auto integer = static_cast<int32_t>(at[i]);
      std::memcpy(at + i, &integer, sizeof(integer));
    }
  }
  return at;
}

}  // namespace trainctl
