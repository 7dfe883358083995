// Steps that a chain of transforms is composed of. A step only moves the view of the sample, writes the sample again,
// or changes what an earlier step wrote.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "engine/train/data/image/crop_choice.h"
#include "engine/train/data/image/pixel_kernels.h"
#include "engine/train/data/sample_transforms.h"

namespace trainctl {

/// A sample between steps.
struct SampleAtWork {
  SampleView view;
  bool is_reversed = false;          ///< its columns count from the last to the first
  PixelBox box;                      ///< box that the current step cuts out of its input
  std::optional<SourceBox> decoded;  ///< the exact part of a view that was decoded at a smaller scale

  ImageSize size() const { return {view.height, view.width}; }
};

struct SampleStep {
  enum class Kind : uint8_t { view, write, in_place };

  Kind kind = Kind::view;
  /// Runs the step. `out` has room for the result of a step that writes.
  std::function<void(SampleAtWork& sample, std::byte* out, SampleRng& rng, TransformScratch& scratch)> run;
  /// For a step that writes: returns the number of bytes of its result.
  std::function<int64_t(const SampleAtWork& sample)> bytes = {};
  /// For a step that cuts: chooses the box.
  std::function<PixelBox(const ImageSize& image, SampleRng& rng)> choose = {};
  /// For a resize that may take an image decoded at a smaller scale: the size of its result.
  std::optional<ImageSize> shrinks_to = {};
};

/// Says whether the channels are the last dim of a value or its first.
enum class ChannelOrder : uint8_t { channels_last, channels_first };

/// One pass over all values: conversion to f32 (if `to` is f32), the ops in order, and a change to channels first (if
/// `to_layout` is that).
struct PixelPass {
  ElementType from, to;
  ChannelOrder from_layout, to_layout;
  std::vector<PixelOp> ops = {};
};

SampleStep make_pass(PixelPass pass);
/// Cuts out the box that `choose` returns, which is inside the image. The result is a view.
SampleStep make_crop(std::function<PixelBox(const ImageSize&, SampleRng&)> choose, int64_t element_bytes);
/// Cuts out the box that `choose` returns. Elements outside the image become `value`.
SampleStep make_cut(ElementType type, double value, std::function<PixelBox(const ImageSize&, SampleRng&)> choose);
SampleStep make_flip(double chance);
SampleStep make_resize(ElementType from, Resample method, const ImageSize& size, bool may_scale);
/// The transform type_cast: i32, for dense values.
SampleStep make_integers(ElementType from);

/// Works in place on u8 [h, w, 3]. `amounts`: from draw_color_change.
SampleStep make_color_jitter(const std::array<double, 4>& amounts);
/// Erases in place.
struct Erasing {
  double chance;
  Range scale, ratio;
  double value;
};
SampleStep make_erasing(ElementType type, ChannelOrder layout, const Erasing& erasing);
/// Converts classes of u8 or i32 to f32 vectors that are 0 except for a 1 at the class. Throws EnvError for a class
/// that is not in [0, classes).
SampleStep make_one_hot(ElementType from, int64_t classes);
/// Converts bytes to `length` tokens of i32; longer samples are cut off, and shorter ones filled up with `filler`.
SampleStep make_tokens(int64_t length, int32_t filler);

}  // namespace trainctl
