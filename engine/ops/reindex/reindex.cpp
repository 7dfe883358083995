// reindex: y[.., o, ..] = x[.., source(o), ..] along attr dim. y has `before` more elements of x in front and `after`
// behind (negative: fewer), which attr mode takes from x:
//
//   x = 0 1 2 3, before 2, after 3    circular 2 3|0 1 2 3|0 1 2    reflect 2 1|0 1 2 3|2 1 0
//                                     replicate 0 0|0 1 2 3|3 3 3
//
// roll by s is circular with before = s and after = -s. dx[i] is the sum of dy over the elements of y that have x[i].
//
// y = S x with a matrix S of ones and zeros, as in slice: the dim has one letter in x and another in y, and both may be
// cut. A rank that has a part of x writes what comes from it, and 0 elsewhere.
#include <fmt/format.h>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"
#include "engine/ops/reindex/pad_beyond.h"

namespace trainctl {
namespace {

std::vector<TensorInfo> infer_reindex(std::string_view op, Infos in, const Attrs& attrs, int64_t size) {
  expect_inputs(op, in, 1, 1);
  expect_floats(op, in);
  const int64_t dim = attrs.integer("dim");
  if (dim < 0 || dim >= static_cast<int64_t>(in[0].shape.size()))
    shape_error(fmt::format("{}: there is no dim {} in {}", op, dim, to_string(in[0])));
  TensorInfo out = in[0];
  out.shape[static_cast<size_t>(dim)] = size;
  return {out};
}

Attrs reindex_example() {
  return {{"dim", int64_t{1}}, {"before", int64_t{2}}, {"after", int64_t{2}}, {"mode", std::string("reflect")}};
}

}  // namespace

TensorId emit_reindex(LayerBuilder& builder, TensorId x, const Continuation& wanted, const std::string& suffix) {
  const int64_t size = builder.shape(x)[static_cast<size_t>(wanted.dim)];
  const int64_t most = wanted.mode == "circular" ? size : wanted.mode == "reflect" ? size - 1 : kMaxElements;
  for (const int64_t added : {wanted.before, wanted.after})
    if (added > most)
      throw ShapeError(fmt::format("a padding of {} with mode {} needs more than the {} elements of dim {} of {}",
                                   added, wanted.mode, size, wanted.dim, to_string(builder.shape(x))),
                       wanted.field);
  return builder.emit("reindex", {x},
                      {{"dim", wanted.dim}, {"before", wanted.before}, {"after", wanted.after}, {"mode", wanted.mode}},
                      suffix)[0];
}

Field padding_mode_field() {
  return text("padding_mode",
              "Values beyond the edges. zeros: 0; reflect: the input mirrored at the edge, without repeating the edge; "
              "replicate: the values at the edge; circular: the values from the opposite side.")
      .one_of({"zeros", "reflect", "replicate", "circular"})
      .defaults(std::string("zeros"));
}

TensorId pad_images(LayerBuilder& builder, TensorId images, const std::string& mode, Attrs& window) {
  if (mode == "zeros") return images;
  const Ints padding = window.ints("padding");
  window.set("padding", Ints(4, 0));
  for (int64_t d = 0; d < 2; ++d) {
    const int64_t before = padding[static_cast<size_t>(2 * d)], after = padding[static_cast<size_t>(2 * d + 1)];
    if (before + after > 0)
      images = emit_reindex(builder, images, {2 + d, before, after, mode, "padding"}, d == 0 ? "rows" : "columns");
  }
  return images;
}

extern const OpDef reindex_op = {
    .name = "reindex",
    .infer =
        [](Infos in, const Attrs& attrs) {
          const int64_t before = attrs.integer("before"), after = attrs.integer("after"), dim = attrs.integer("dim");
          expect_inputs("reindex", in, 1, 1);
          const bool known = dim >= 0 && dim < static_cast<int64_t>(in[0].shape.size());
          const int64_t size = known ? in[0].shape[static_cast<size_t>(dim)] + before + after : 1;
          if (size < 1)
            shape_error(fmt::format("reindex: nothing is left of dim {} of {} with before {} and after {}", dim,
                                    to_string(in[0]), before, after));
          return infer_reindex("reindex", in, attrs, size);
        },
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
          g.set_in_grad(0, "reindex_grad", {g.out_grad()}, attrs);
        },
    .kernel = {.name = "reindex",
               .channels_last = images_along_dim,
               .cost = elementwise_cost<0>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y = x along a dim, continued from x beyond its ends",
                                          .inputs = {{kMatrix}},
                                          .attrs = reindex_example()};
                   }},
    .attrs_name_places = true,
};

/// dy -> dx, with dim `dim` of attr size
extern const OpDef reindex_grad_op = {
    .name = "reindex_grad",
    .infer = [](Infos in,
                const Attrs& attrs) { return infer_reindex("reindex_grad", in, attrs, attrs.integer("size")); },
    .kernel = {.name = "reindex_grad",
               .channels_last = images_along_dim,
               .cost = elementwise_cost<1>,
               .example =
                   [] {
                     using namespace example;
                     Attrs attrs = reindex_example();
                     attrs.set("size", kCols - 4);
                     return KernelExample{.what = "dx = dy summed over the elements of y that have x",
                                          .inputs = {{kMatrix}},
                                          .attrs = attrs};
                   }},
    .attrs_name_places = true,
};

extern const LayerDef roll_layer = {
    .name = "roll",
    .doc = "Moves the elements of a dim by `shift` places; elements moved past the end reappear at the start.",
    .fields = {integer("shift", "Number of positions to shift by; negative: towards the start.").required(),
               integer("dim", "Dim along which to shift, other than the batch dim; -1 is the last.").required()},
    .emit =
        [](LayerContext& layer) {
          const int64_t dim = layer.sample_dim(layer.attrs.integer("dim"));
          const int64_t size = layer.shape()[static_cast<size_t>(dim)];
          const int64_t shift = (layer.attrs.integer("shift") % size + size) % size;
          if (shift == 0)
            throw ShapeError(fmt::format("a shift of {} moves nothing, because dim {} of its input {} has {} elements",
                                         layer.attrs.integer("shift"), dim, to_string(layer.shape()), size),
                             "shift");
          return emit_reindex(layer.builder, layer.inputs[0], {dim, shift, -shift, "circular", "shift"}, "");
        },
};

extern const OpFamily reindex_family = {.ops = {&reindex_op, &reindex_grad_op}, .layers = {&roll_layer}};

}  // namespace trainctl
