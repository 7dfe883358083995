// Shared by max_pool2d and avg_pool2d: one window of attrs kernel, stride, dilation, padding and ceil_mode (images.h)
// on each channel of images.
#pragma once

#include "engine/ops/window_layer.h"

namespace trainctl {

/// Fields of both layers, followed by those of one of them, such as dilation.
std::vector<Field> pool_fields(std::vector<Field> own = {});
/// The attrs of the op. Throws a ShapeError if the window does not fit.
Attrs pool_attrs(const LayerContext& layer);

/// The same for dim d of a window along a dim of this name and size, of an input that is not images.
void expect_window_of_pool(const Window& window, size_t d, const std::string& name, int64_t size);

std::vector<TensorInfo> infer_pool(std::string_view op, Infos in, const Attrs& attrs);
/// dx has x's shape; dy must have a pixel for each window.
std::vector<TensorInfo> infer_pool_grad(std::string_view op, const TensorInfo& dy, const TensorInfo& x,
                                        const Attrs& attrs);
RuleText pool_rule(Infos in, const Attrs& attrs);
/// Every operand passes through memory once; an addition or comparison for each pixel of a window.
Cost pool_cost(Infos in, Infos out, const Attrs& attrs);

// Examples: 32 images of 64 channels, 112 x 112, with windows of 3x3 that overlap.
inline const Shape kPoolInput = {32, 64, 112, 112}, kPoolOutput = {32, 64, 56, 56};
KernelExample pool_example(const char* what, std::vector<KernelExample::Input> inputs);

/// The kernel of a pool or of its gradient; all of its kInputs inputs are images.
template <unsigned kInputs>
constexpr KernelDef pool_kernel(const char* name, KernelExample (*example)()) {
  return {.name = name, .channels_last = images_of<(1u << kInputs) - 1, 1>, .cost = pool_cost, .example = example};
}

}  // namespace trainctl
