// Shared by the layers and ops that slide a window over images: their fields, and the checks of their shapes.
#include "engine/ops/window_layer.h"

#include <fmt/format.h>

#include <algorithm>

namespace trainctl {
namespace {

std::string side_text(const Images& images) { return fmt::format("{}x{}", images.size[0], images.size[1]); }

std::string window_text(const Window& w) {
  const bool dilated = w.dilation[0] > 1 || w.dilation[1] > 1;
  return fmt::format("a kernel of {}x{}{}", w.kernel[0], w.kernel[1],
                     dilated ? fmt::format(", {}x{} with its dilation,", w.reach(0), w.reach(1)) : "");
}

std::string does_not_fit(const Window& window, const Images& images) {
  Images padded = images;
  bool any = false;
  for (size_t d = 0; d < 2; ++d) {
    padded.size[d] += window.before[d] + window.after[d];
    any = any || padded.size[d] != images.size[d];
  }
  return fmt::format("{} does not fit into images of {}{}", window_text(window), side_text(images),
                     any ? fmt::format(", {} with their padding", side_text(padded)) : "");
}

bool fits(const Window& window, const Images& images) {
  return window.count(0, images.size[0]) > 0 && window.count(1, images.size[1]) > 0;
}

}  // namespace

Field kernel_field() {
  return per_dim("kernel", "Height and width of the window.").required().at_least(1).at_most(kMaxSize);
}

Field stride_field(std::string doc) { return per_dim("stride", std::move(doc)).at_least(1).at_most(kMaxSize); }

Field padding_field(std::string doc, std::vector<std::string> words) {
  return per_dim("padding", std::move(doc), std::move(words)).defaults(Ints{0}).at_least(0).at_most(kMaxSize);
}

std::array<int64_t, 2> per_side(const Attrs& attrs, const char* field) {
  const Ints values = attrs.ints(field);
  if (values.size() == 1) return {values[0], values[0]};
  if (values.size() == 2) return {values[0], values[1]};
  throw ShapeError(fmt::format("{} must be one number or [height, width], but it has {} numbers", field, values.size()),
                   field);
}

Ints padding_of(const Attrs& attrs) {
  const Ints values = attrs.ints("padding");
  if (values.size() == 4) return values;
  if (values.size() == 1) return Ints(4, values[0]);
  if (values.size() == 2) return {values[0], values[0], values[1], values[1]};
  throw ShapeError(fmt::format("padding must be one number, [height, width] or [top, bottom, left, right], but it "
                               "has {} numbers",
                               values.size()),
                   "padding");
}

void expect_images(const LayerContext& layer) {
  const Shape& in = layer.shape();
  if (in.size() != 4)
    shape_error(
        fmt::format("{} needs images [n, c, h, w], but got {}{}", layer.def.name, to_string(in),
                    in.size() == 2 ? "; use it before the layers that make rows, such as flatten and dense" : ""));
  for (size_t d = 1; d < 4; ++d) {
    if (!layer.batch().is_sized(d)) continue;
    shape_error(
        fmt::format("dim {} of {} depends on the batch, which must be dim 0 of images [n, c, h, w]; move it to dim 0 "
                    "before this layer",
                    d, to_string(in)));
  }
}

void expect_window_fits(const Window& window, const Images& images) {
  if (!fits(window, images))
    throw ShapeError(does_not_fit(window, images) + "; use a smaller kernel, or padding", "kernel");
}

void expect_window_fits(const Window& window, size_t d, int64_t size, const std::string& what,
                        const std::string& whose) {
  if (window.count(d, size) > 0) return;
  const int64_t padded = size + window.before[d] + window.after[d];
  throw ShapeError(
      fmt::format("a kernel of {}{} does not fit into {} of {}{}; use a smaller kernel, or padding", window.kernel[d],
                  window.dilation[d] > 1 ? fmt::format(", {} with its dilation,", window.reach(d)) : "", what, size,
                  padded == size ? "" : fmt::format(", {} with {} padding", padded, whose)),
      "kernel");
}

void expect_output_padding(int64_t output_padding, int64_t stride, int64_t dilation) {
  if (output_padding < std::max(stride, dilation)) return;
  throw ShapeError(fmt::format("output_padding {} must be smaller than the stride, {}, or the dilation, {}",
                               output_padding, stride, dilation),
                   "output_padding");
}

Images expect_images(std::string_view op, const TensorInfo& input, const Attrs& attrs) {
  if (input.shape.size() != 4) {
    shape_error(fmt::format("{} needs images {}, but got {}", op,
                            is_channels_last(attrs) ? "[n, h, w, c]" : "[n, c, h, w]", to_string(input)));
  }
  return Images::of(input.shape, is_channels_last(attrs));
}

Images window_output(std::string_view op, const Images& images, const Window& window, int64_t channels) {
  if (!fits(window, images)) shape_error(fmt::format("{}: {}", op, does_not_fit(window, images)));
  return {images.n, channels, {window.count(0, images.size[0]), window.count(1, images.size[1])}};
}

std::string image_letters(std::string_view channels, std::string_view height_and_width, bool channels_last) {
  const std::string first = channels_last ? "" : std::string(channels),
                    last = channels_last ? std::string(channels) : "";
  return "n" + first + std::string(height_and_width) + last;
}

}  // namespace trainctl
