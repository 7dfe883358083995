// Shared by the layers and ops that slide a window over images: their fields, and the checks of their shapes.
#pragma once

#include "engine/ops/expect.h"
#include "engine/ops/images.h"
#include "engine/ops/layer_def.h"

namespace trainctl {

Field kernel_field();
Field stride_field(std::string doc);
Field padding_field(std::string doc, std::vector<std::string> words = {});

/// A field with one number for height and width, or one for each. Throws a ShapeError of the field.
std::array<int64_t, 2> per_side(const Attrs& attrs, const char* field);
/// Field padding as [top, bottom, left, right]. A job states one number, [height, width], or all four.
Ints padding_of(const Attrs& attrs);

/// Throws unless the layer's input is [n, c, h, w] with the batch in dim 0.
void expect_images(const LayerContext& layer);
/// Throws a ShapeError of the field kernel if the window does not fit into the padded image.
void expect_window_fits(const Window& window, const Images& images);

/// The same for dim `d` of the window, which moves along `size` elements. The error calls them e.g. "rows" with "their"
/// padding.
void expect_window_fits(const Window& window, size_t d, int64_t size, const std::string& what,
                        const std::string& whose);

/// Throws a ShapeError of the field output_padding unless it is smaller than the stride or the dilation, as in PyTorch.
void expect_output_padding(int64_t output_padding, int64_t stride, int64_t dilation);
/// The op conv_transpose2d supports an output_padding that is smaller than the stride. A larger one is that of an input
/// with this many zeros at its end, which add nothing to the output but its size.
inline int64_t zeros_of_output_padding(int64_t output_padding, int64_t stride) { return output_padding / stride; }

/// Checks that `input` is images, and returns their sizes.
Images expect_images(std::string_view op, const TensorInfo& input, const Attrs& attrs);
/// The sizes of the output of a window, which has `channels` channels.
Images window_output(std::string_view op, const Images& images, const Window& window, int64_t channels);

/// Letters of images; `channels` is those of the channel dim: "nchw", "n(gc)hw".
std::string image_letters(std::string_view channels, std::string_view height_and_width, bool channels_last);

/// KernelDef::channels_last of a kernel with the attr channels_last: the operands of these bits are images.
template <unsigned kInputs, unsigned kOutputs>
std::optional<ChannelsLast> images_of(Infos, const Attrs& attrs) {
  ChannelsLast form{attrs, kInputs, kOutputs};
  form.attrs.set("channels_last", true);
  return form;
}

/// The reason why letters of height and width may not be cut.
inline constexpr const char* kWindowsNeedNeighbours =
    "a window reads neighboring rows and columns, which would be on another rank";

}  // namespace trainctl
