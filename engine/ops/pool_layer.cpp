// Shared by max_pool2d and avg_pool2d: one window of attrs kernel, stride, dilation, padding and ceil_mode (images.h)
// on each channel of images.
#include "engine/ops/pool_layer.h"

#include <fmt/format.h>

#include "engine/ops/elementwise.h"

namespace trainctl {
namespace {

/// Throws a ShapeError if the padding is more than half of the window. `of`: what is padded, such as "the image".
void expect_little_padding(const Window& window, size_t d, const std::string& of) {
  const int64_t padding = std::max(window.before[d], window.after[d]);
  if (2 * padding <= window.reach(d)) return;
  throw ShapeError(fmt::format("padding of {} is more than half of a kernel of {}, so a window could lie outside {}",
                               padding, window.reach(d), of),
                   "padding");
}
void expect_little_padding(const Window& window) {
  for (size_t d = 0; d < 2; ++d) expect_little_padding(window, d, "the image");
}

/// With dilation, all elements of a window may be in the padding, on both sides of a short dim. `of`: "a side of the
/// image"; `elements`: "pixels".
void expect_elements_inside(const Window& window, size_t d, int64_t size, const std::string& of, const char* elements) {
  if (window.dilation[d] == 1) return;
  for (int64_t at = 0; at < window.count(d, size); ++at) {
    int64_t element = at * window.stride[d] - window.before[d];
    for (int64_t k = 1; k < window.kernel[d] && element < 0; ++k) element += window.dilation[d];
    if (element >= 0 && element < size) continue;
    throw ShapeError(fmt::format("all {} of a window are in the padding, because {} has only {} {}; lower dilation or "
                                 "padding",
                                 elements, of, size, elements),
                     "dilation");
  }
}
void expect_pixels_inside(const Window& window, const Images& images) {
  for (size_t d = 0; d < 2; ++d) expect_elements_inside(window, d, images.size[d], "a side of the image", "pixels");
}

}  // namespace

std::vector<Field> pool_fields(std::vector<Field> own) {
  std::vector<Field> fields = {
      kernel_field(), stride_field("Distance between windows; default: kernel, so that windows do not overlap."),
      padding_field("Padding around the image: one number, [height, width] or [top, bottom, left, right]; at most "
                    "half of the kernel."),
      flag("ceil_mode", false, "Round the output size up, so that the last window can extend beyond the image.")};
  fields.insert(fields.end(), own.begin(), own.end());
  return fields;
}

Attrs pool_attrs(const LayerContext& layer) {
  expect_images(layer);
  const std::array<int64_t, 2> kernel = per_side(layer.attrs, "kernel"),
                               stride = layer.attrs.has("stride") ? per_side(layer.attrs, "stride") : kernel;
  Attrs attrs{{"kernel", Ints(kernel.begin(), kernel.end())},
              {"stride", Ints(stride.begin(), stride.end())},
              {"padding", padding_of(layer.attrs)},
              {"ceil_mode", layer.attrs.flag("ceil_mode")}};
  if (layer.attrs.has("dilation")) {
    const std::array<int64_t, 2> dilation = per_side(layer.attrs, "dilation");
    if (dilation[0] > 1 || dilation[1] > 1) attrs.set("dilation", Ints(dilation.begin(), dilation.end()));
  }
  const Window window = Window::of(attrs);
  expect_little_padding(window);
  expect_window_fits(window, Images::of(layer.shape(), false));
  expect_pixels_inside(window, Images::of(layer.shape(), false));
  return attrs;
}

void expect_window_of_pool(const Window& window, size_t d, const std::string& name, int64_t size) {
  expect_little_padding(window, d, "the " + name);
  expect_window_fits(window, d, size, "a " + name, "its");
  expect_elements_inside(window, d, size, "the " + name, "elements");
}

std::vector<TensorInfo> infer_pool(std::string_view op, Infos in, const Attrs& attrs) {
  expect_inputs(op, in, 1, 1);
  expect_floats(op, in);
  const Window window = Window::of(attrs);
  const Images x = expect_images(op, in[0], attrs), y = window_output(op, x, window, x.c);
  expect_little_padding(window);
  expect_pixels_inside(window, x);
  return {{y.shape(is_channels_last(attrs)), in[0].dtype}};
}

std::vector<TensorInfo> infer_pool_grad(std::string_view op, const TensorInfo& dy, const TensorInfo& x,
                                        const Attrs& attrs) {
  expect_shape(op, "dy", dy, infer_pool(op, std::span(&x, 1), attrs)[0].shape);
  return {x};
}

RuleText pool_rule(Infos, const Attrs& attrs) {
  const bool last = is_channels_last(attrs);
  return {image_letters("c", "hw", last) + "->" + image_letters("c", "pq", last), "hwpq", kWindowsNeedNeighbours};
}

Cost pool_cost(Infos in, Infos out, const Attrs& attrs) {
  Cost cost = traffic_cost(in, out, 0);
  const Window window = Window::of(attrs);
  cost.flops = static_cast<double>(window.kernel[0] * window.kernel[1]) *
               static_cast<double>(std::min(num_elements(in[0].shape), num_elements(out[0].shape)));
  return cost;
}

KernelExample pool_example(const char* what, std::vector<KernelExample::Input> inputs) {
  return {.what = what,
          .inputs = std::move(inputs),
          .attrs = {{"kernel", Ints{3, 3}}, {"stride", Ints{2, 2}}, {"padding", Ints{1, 1, 1, 1}}},
          .optional = {{"ceil_mode", true}, {"channels_last", true}}};
}

}  // namespace trainctl
