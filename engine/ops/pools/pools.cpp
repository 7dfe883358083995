// Pools of rows [n, c, length] and of volumes [n, c, depth, height, width] as pools of images. Rows become images with
// a height of 1. The largest element, or the mean, of a box is that of its slices, so a volume is pooled in each slice,
// as images [n, (c depth), height, width], and then along the depth, as images [n, c, depth, (height width)].
#include <span>
#include <string>

#include "engine/ops/op_family.h"
#include "engine/ops/pool_layer.h"
#include "engine/ops/three_dims.h"

namespace trainctl {
namespace {

enum class Pool { max, average };

/// The windows of a pool, per dim after the channels.
struct Windows {
  Ints kernel, stride, padding, dilation;
};

/// Checks the windows of each dim, in words that name it.
void expect_windows(const LayerContext& layer, const Windows& windows, std::span<const std::string> dims) {
  for (size_t d = 0; d < dims.size(); ++d) {
    const Window window{.kernel = {1, windows.kernel[d]},
                        .stride = {1, windows.stride[d]},
                        .dilation = {1, windows.dilation[d]},
                        .before = {0, windows.padding[d]},
                        .after = {0, windows.padding[d]},
                        .ceil_mode = layer.attrs.flag("ceil_mode")};
    expect_window_of_pool(window, 1, dims[d], layer.shape()[2 + d]);
  }
}

/// The attrs of a pool of images whose height and width are these dims of the windows; -1: a dim that is not pooled.
Attrs images_attrs(const LayerContext& layer, Pool pool, const Windows& windows, std::array<int, 2> dims) {
  const auto of = [&](const Ints& per_dim, int64_t none) {
    Ints two;
    for (const int d : dims) two.push_back(d < 0 ? none : per_dim[static_cast<size_t>(d)]);
    return two;
  };
  const Ints padding = of(windows.padding, 0), dilation = of(windows.dilation, 1);
  Attrs attrs{{"kernel", of(windows.kernel, 1)},
              {"stride", of(windows.stride, 1)},
              {"padding", Ints{padding[0], padding[0], padding[1], padding[1]}},
              {"ceil_mode", layer.attrs.flag("ceil_mode")}};
  if (pool == Pool::average) attrs.set("count_include_pad", layer.attrs.flag("count_include_pad"));
  if (dilation != Ints{1, 1}) attrs.set("dilation", dilation);
  return attrs;
}

const char* op_of(Pool pool) { return pool == Pool::max ? "max_pool2d" : "avg_pool2d"; }

/// Emits a pool of rows [n, c, length], as a pool of images of height 1.
TensorId emit_pool1d(LayerContext& layer, Pool pool) {
  const Shape x = layer.shape();
  if (x.size() != 3)
    shape_error(fmt::format("{} needs an input [n, c, length], but got {}", layer.def.name, to_string(x)));
  const Attrs& fields = layer.attrs;
  const int64_t kernel = fields.integer("kernel");
  const Windows windows{.kernel = {kernel},
                        .stride = {fields.integer("stride", kernel)},
                        .padding = {fields.integer("padding")},
                        .dilation = {fields.integer("dilation", 1)}};
  expect_windows(layer, windows, std::array<std::string, 1>{"length"});
  LayerBuilder& b = layer.builder;
  const TensorId images = b.emit("reshape", {layer.inputs[0]}, {{"shape", Shape{x[0], x[1], 1, x[2]}}}, "images")[0];
  const TensorId y = b.emit(op_of(pool), {images}, images_attrs(layer, pool, windows, {-1, 0}), "pool")[0];
  const Shape out = b.shape(y);
  return b.emit("reshape", {y}, {{"shape", Shape{out[0], out[1], out[3]}}})[0];
}

/// Emits a pool of volumes: first of each slice, then along the depth.
TensorId emit_pool3d(LayerContext& layer, Pool pool) {
  expect_volume(layer);
  const Attrs& fields = layer.attrs;
  const Shape x = layer.shape();
  const auto per_dim = [&](const char* field) {
    const Three three = three_of(fields, field);
    return Ints(three.begin(), three.end());
  };
  const Windows windows{.kernel = per_dim("kernel"),
                        .stride = per_dim(fields.has("stride") ? "stride" : "kernel"),
                        .padding = per_dim("padding"),
                        .dilation = fields.has("dilation") ? per_dim("dilation") : Ints{1, 1, 1}};
  expect_windows(layer, windows, std::array<std::string, 3>{"depth", "height", "width"});
  LayerBuilder& b = layer.builder;
  TensorId y = b.emit("reshape", {layer.inputs[0]}, {{"shape", Shape{x[0], x[1] * x[2], x[3], x[4]}}}, "images")[0];
  y = b.emit(op_of(pool), {y}, images_attrs(layer, pool, windows, {1, 2}), "slices")[0];
  const int64_t height = b.shape(y)[2], width = b.shape(y)[3];
  y = b.emit("reshape", {y}, {{"shape", Shape{x[0], x[1], x[2], height * width}}}, "columns")[0];
  y = b.emit(op_of(pool), {y}, images_attrs(layer, pool, windows, {0, -1}), "depth")[0];
  return b.emit("reshape", {y}, {{"shape", Shape{x[0], x[1], b.shape(y)[2], height, width}}})[0];
}

Field ceil_field() {
  return flag("ceil_mode", false, "Round the output size up, so that the last window can extend beyond the input.");
}
Field include_pad_field() {
  return flag("count_include_pad", true, "Include the padding in the mean as elements of value 0.");
}
constexpr const char *kStrideDoc = "Distance between windows (if omitted, kernel, so that windows do not overlap)",
                     *kPaddingDoc = "Padding at both ends, at most half of the kernel",
                     *kDilationDoc = "Distance between the elements of a window";

std::vector<Field> fields_of_rows(Field own) {
  const auto size = [](const char* name, std::string doc) { return integer(name, doc + ".").at_most(kMaxSize); };
  return {size("kernel", "Length of the window").required().at_least(1), size("stride", kStrideDoc).at_least(1),
          size("padding", kPaddingDoc).defaults(int64_t{0}).at_least(0), ceil_field(), std::move(own)};
}

std::vector<Field> fields_of_volumes(Field own) {
  const auto size = [](const char* name, const char* doc) { return of_three(name, doc).at_most(kMaxSize); };
  return {size("kernel", "Size of the window").required().at_least(1), size("stride", kStrideDoc).at_least(1),
          size("padding", kPaddingDoc).defaults(Ints{0}).at_least(0), ceil_field(), std::move(own)};
}

std::vector<FieldFault> volume_faults(const Attrs& attrs) {
  return faults_of_three(attrs, {"kernel", "stride", "padding", "dilation"});
}

}  // namespace

extern const LayerDef max_pool1d_layer = {
    .name = "max_pool1d",
    .doc = "Max pooling along the last dim of [n, c, length].",
    .fields = fields_of_rows(
        integer("dilation", std::string(kDilationDoc) + ".").defaults(int64_t{1}).at_least(1).at_most(kMaxSize)),
    .emit = [](LayerContext& layer) { return emit_pool1d(layer, Pool::max); },
};

extern const LayerDef avg_pool1d_layer = {
    .name = "avg_pool1d",
    .doc = "Average pooling along the last dim of [n, c, length].",
    .fields = fields_of_rows(include_pad_field()),
    .emit = [](LayerContext& layer) { return emit_pool1d(layer, Pool::average); },
};

extern const LayerDef max_pool3d_layer = {
    .name = "max_pool3d",
    .doc = "Max pooling of volumes [n, c, depth, height, width].",
    .fields = fields_of_volumes(of_three("dilation", kDilationDoc).defaults(Ints{1}).at_least(1).at_most(kMaxSize)),
    .faults = volume_faults,
    .emit = [](LayerContext& layer) { return emit_pool3d(layer, Pool::max); },
};

extern const LayerDef avg_pool3d_layer = {
    .name = "avg_pool3d",
    .doc = "Average pooling of volumes [n, c, depth, height, width].",
    .fields = fields_of_volumes(include_pad_field()),
    .faults = volume_faults,
    .emit = [](LayerContext& layer) { return emit_pool3d(layer, Pool::average); },
};

extern const OpFamily pools_family = {
    .ops = {}, .layers = {&max_pool1d_layer, &avg_pool1d_layer, &max_pool3d_layer, &avg_pool3d_layer}};

}  // namespace trainctl
