// interpolate: y[.., o, ..] = a mix of neighbouring elements of x along attr dim, two (attr linear) or four (attr
// cubic), or the nearest one (interpolate_map.h), to attr `to` elements. attrs ratio, align_corners. The layer resizes
// one dim after the other, which is bilinear, bicubic and trilinear interpolation, as torch.nn.functional.interpolate.
//
// y = S x with a constant matrix S, as in reindex: the dim has one letter in x and another in y, and both may be cut. A
// rank that has a part of x writes what comes from it, and 0 elsewhere.
#include <fmt/format.h>

#include <cmath>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

std::vector<TensorInfo> infer_interpolate(std::string_view op, Infos in, const Attrs& attrs, const char* size) {
  expect_inputs(op, in, 1, 1);
  expect_floats(op, in);
  const int64_t dim = attrs.integer("dim");
  if (dim < 0 || dim >= static_cast<int64_t>(in[0].shape.size()))
    shape_error(fmt::format("{}: there is no dim {} in {}", op, dim, to_string(in[0])));
  TensorInfo out = in[0];
  out.shape[static_cast<size_t>(dim)] = attrs.integer(size);
  return {out};
}

Attrs interpolate_example() {
  return {{"dim", int64_t{1}}, {"ratio", 0.5}, {"linear", true}, {"align_corners", false}, {"to", 2 * example::kCols}};
}

/// Sizes of the output's dims after the channels, and the elements of x per element of y.
struct Resizing {
  Ints to;
  std::vector<double> ratios;
};

int64_t nth(const Ints& values, size_t d) { return values.size() == 1 ? values[0] : values[d]; }

/// The new sizes of the dims after the channels, and the ratio of input to output positions along each.
Resizing resizing_of(const LayerContext& layer, size_t dims, bool align_corners) {
  const Shape& x = layer.shape();
  Resizing resizing;
  const bool by_scale = layer.attrs.has("scale");
  const Ints sizes = layer.attrs.ints("size");
  const std::vector<double> scales = layer.attrs.numbers("scale");
  const size_t given = by_scale ? scales.size() : sizes.size();
  if (given != 1 && given != dims)
    throw ShapeError(fmt::format("{} numbers for the {} dims after the channels of {}; expected one, or one for each",
                                 given, dims, to_string(x)),
                     by_scale ? "scale" : "size");
  for (size_t d = 0; d < dims; ++d) {
    const int64_t n = x[2 + d];
    const double scale = by_scale ? (given == 1 ? scales[0] : scales[d]) : 1;
    const int64_t to = by_scale ? static_cast<int64_t>(std::floor(static_cast<double>(n) * scale)) : nth(sizes, d);
    if (to < 1) throw ShapeError(fmt::format("a scale of {} leaves nothing of {}", scale, to_string(x)), "scale");
    resizing.to.push_back(to);
    const double whole = static_cast<double>(n) / static_cast<double>(to);
    const double corners = to > 1 ? static_cast<double>(n - 1) / static_cast<double>(to - 1) : 0.0;
    resizing.ratios.push_back(align_corners ? corners : by_scale ? 1 / scale : whole);
  }
  return resizing;
}

/// One node per dim that changes: linear and cubic interpolation are separable.
TensorId emit_interpolate(LayerContext& layer) {
  const Shape x = layer.shape();
  const std::string mode = layer.attrs.text("mode");
  const bool cubic = mode == "bicubic", linear = mode != "nearest" && !cubic;
  const bool align_corners = layer.attrs.flag("align_corners");
  const size_t dims = x.size() < 2 ? 0 : x.size() - 2;
  const size_t wanted = mode == "linear" ? 1 : mode == "bilinear" || cubic ? 2 : mode == "trilinear" ? 3 : dims;
  if (dims < 1 || dims > 3 || dims != wanted)
    throw ShapeError(fmt::format("interpolate with mode {} needs an input [n, c{}], but got {}", mode,
                                 wanted == 1   ? ", length"
                                 : wanted == 3 ? ", depth, height, width"
                                               : ", height, width",
                                 to_string(x)),
                     "mode");
  const Resizing resizing = resizing_of(layer, dims, align_corners);
  std::vector<size_t> changed;
  for (size_t d = 0; d < dims; ++d)
    if (resizing.to[d] != x[2 + d]) changed.push_back(d);
  if (changed.empty())
    throw ShapeError(fmt::format("the input {} has this size already; remove the layer", to_string(x)),
                     layer.attrs.has("scale") ? "scale" : "size");
  TensorId y = layer.inputs[0];
  for (const size_t d : changed) {
    Attrs attrs{{"dim", static_cast<int64_t>(2 + d)},
                {"ratio", resizing.ratios[d]},
                {"linear", linear},
                {"align_corners", align_corners},
                {"to", resizing.to[d]}};
    if (cubic) attrs.set("cubic", true);
    y = layer.builder.emit("interpolate", {y}, attrs, d == changed.back() ? "" : "dim" + std::to_string(2 + d))[0];
  }
  return y;
}

std::vector<FieldFault> interpolate_faults(const Attrs& attrs) {
  if (attrs.has("size") == attrs.has("scale"))
    return {{attrs.has("size") ? "scale" : "size",
             attrs.has("size") ? "size and scale cannot be combined" : "it is missing",
             "give size, e.g. [64, 64], or scale, e.g. 2"}};
  if (attrs.flag("align_corners") && attrs.text("mode") == "nearest")
    return {{"align_corners", "mode nearest has no align_corners", "set mode: bilinear, or remove align_corners"}};
  return {};
}

}  // namespace

extern const OpDef interpolate_op = {
    .name = "interpolate",
    .infer = [](Infos in, const Attrs& attrs) { return infer_interpolate("interpolate", in, attrs, "to"); },
    .rule = [](Infos in, const Attrs& attrs) -> RuleText {
      const std::string from = letters(in[0].shape.size());
      std::string to = from;
      to[static_cast<size_t>(attrs.integer("dim"))] = letters(from.size() + 1).back();
      return {from + "->" + to};
    },
    .backward =
        [](GradBuilder& g) {
          Attrs attrs = g.attrs();
          attrs.set("size", g.shape(g.in(0))[static_cast<size_t>(attrs.integer("dim"))]);
          g.set_in_grad(0, "interpolate_grad", {g.out_grad()}, attrs);
        },
    .kernel = {.name = "interpolate",
               .channels_last = images_along_dim,
               .cost = elementwise_cost<3>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{
                         .what = "y = x resized along a dim", .inputs = {{kMatrix}}, .attrs = interpolate_example()};
                   }},
    .attrs_name_places = true,
};

/// dy -> dx, with dim `dim` of attr size
extern const OpDef interpolate_grad_op = {
    .name = "interpolate_grad",
    .infer = [](Infos in, const Attrs& attrs) { return infer_interpolate("interpolate_grad", in, attrs, "size"); },
    .kernel = {.name = "interpolate_grad",
               .channels_last = images_along_dim,
               .cost = elementwise_cost<3>,
               .example =
                   [] {
                     using namespace example;
                     Attrs attrs = interpolate_example();
                     attrs.set("to", kCols);
                     attrs.set("size", kCols / 2);
                     return KernelExample{
                         .what = "dx = the sum of dy times the weights of x", .inputs = {{kMatrix}}, .attrs = attrs};
                   }},
    .attrs_name_places = true,
};

extern const LayerDef interpolate_layer = {
    .name = "interpolate",
    .doc = "Resizes all dims after the channels of [n, c, ..], like torch.nn.functional.interpolate.",
    .fields = {per_dim("size", "Output sizes of the dims after the channels: a single number, or one number per dim.")
                   .at_least(1)
                   .at_most(kMaxSize),
               numbers("scale",
                       "Factor by which the sizes of the dims after the channels are multiplied, in place of size: a "
                       "single number, or one number per dim.")
                   .above(0),
               text("mode",
                    "Interpolation method. nearest: the nearest element; linear, bilinear and trilinear: linear "
                    "interpolation between neighboring elements, for inputs with one, two and three dims after the "
                    "channels; bicubic: cubic interpolation between four neighbors in each of two dims.")
                   .one_of({"nearest", "linear", "bilinear", "bicubic", "trilinear"})
                   .defaults(std::string("nearest")),
               flag("align_corners", false,
                    "Whether the first and last elements of a dim keep their values. false: elements are treated as "
                    "areas that fill the dim.")},
    .faults = interpolate_faults,
    .emit = emit_interpolate,
};

extern const OpFamily interpolate_family = {.ops = {&interpolate_op, &interpolate_grad_op},
                                            .layers = {&interpolate_layer}};

}  // namespace trainctl
