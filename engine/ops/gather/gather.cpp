// gather takes elements of x along attr dim by an i32 index: y[i, j, k] = x[i, index[i, j, k], k], as torch.gather. An
// index without the dims after that one takes whole rows: y[i, j, k] = x[i, index[i, j], k].
//   gather_grad  (dy, index) -> dx [i, n, k], for attr size n: the sum of dy over all j whose index is n
// scatter_add: y[i, n, k] = the sum of x[i, j, k] over all j whose index is n, as torch.scatter_add into zeros; the
// kernel of gather_grad, whose gradient is gather.
//
// The dim is a contraction, like the vocabulary of an embedding: a rank with a part of x writes 0 for all other
// elements.
#include <fmt/format.h>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

/// The shape of y for x and an index; `x` may have any size in the dim.
Shape gathered(const char* op, const TensorInfo& x, const TensorInfo& index, int64_t dim) {
  if (index.dtype != DType::i32)
    shape_error(fmt::format("{}: the index is {} f32, expected i32", op, to_string(index)));
  const auto d = static_cast<size_t>(dim);
  if (dim < 0 || d >= x.shape.size()) shape_error(fmt::format("{}: there is no dim {} in {}", op, dim, to_string(x)));
  Shape y = x.shape;
  bool fits = index.shape.size() == x.shape.size() || index.shape.size() == d + 1;
  for (size_t k = 0; fits && k < index.shape.size(); ++k) fits = k == d || index.shape[k] == x.shape[k];
  if (!fits)
    shape_error(
        fmt::format("{}: the index is {}; expected the shape of {}, up to dim {} or with all dims, and any size "
                    "in that dim",
                    op, to_string(index), to_string(x), dim));
  y[d] = index.shape[d];
  return y;
}

std::vector<TensorInfo> infer_gather(Infos in, const Attrs& attrs) {
  expect_inputs("gather", in, 2, 2);
  expect_floats("gather", in.first(1));
  return {{gathered("gather", in[0], in[1], attrs.integer("dim")), in[0].dtype}};
}

int64_t size_of_dim(Infos in, const Attrs& attrs) { return in[0].shape[static_cast<size_t>(attrs.integer("dim"))]; }

}  // namespace

extern const OpDef gather_op = {
    .name = "gather",
    .infer = infer_gather,
    .rule = [](Infos in, const Attrs& attrs) -> RuleText {
      const std::string x = letters(in[0].shape.size());
      std::string y = x;
      y[static_cast<size_t>(attrs.integer("dim"))] = letters(x.size() + 1).back();
      return {x + "," + y.substr(0, in[1].shape.size()) + "->" + y};
    },
    .backward =
        [](GradBuilder& g) {
          Attrs attrs = g.attrs();
          attrs.set("size", g.shape(g.in(0))[static_cast<size_t>(attrs.integer("dim"))]);
          g.set_in_grad(0, "gather_grad", {g.out_grad(), g.in(1)}, attrs);
        },
    .no_gradient = 2,
    .kernel = {.name = "gather",
               .cost =
                   [](Infos in, Infos out, const Attrs&) {
                     return Cost{.bytes = static_cast<double>(bytes_of(in[1]) + 2 * bytes_of(out[0]))};
                   },
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "rows of x chosen by an index; inputs x, index",
                                          .inputs = {{kMatrix}, ids(kColumn)},
                                          .attrs = {{"dim", int64_t{0}}},
                                          .below = size_of_dim};
                   }},
};

/// (dy, index) -> dx
extern const OpDef gather_grad_op = {
    .name = "gather_grad",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("gather_grad", in, 2, 2);
      expect_floats("gather_grad", in.first(1));
      const int64_t dim = attrs.integer("dim");
      expect_shape("gather_grad", "dy", in[0], gathered("gather_grad", in[0], in[1], dim));
      TensorInfo dx = in[0];
      dx.shape[static_cast<size_t>(dim)] = attrs.integer("size");
      return {dx};
    },
    .kernel = {.name = "gather_grad",
               .cost = elementwise_cost<1>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "dx = dy summed over the elements with that index; inputs dy, index",
                                          .inputs = {{kMatrix}, ids(kColumn)},
                                          .attrs = {{"dim", int64_t{0}}, {"size", kRows}},
                                          .below = [](Infos, const Attrs& attrs) { return attrs.integer("size"); }};
                   }},
};

extern const OpDef scatter_add_op = {
    .name = "scatter_add",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("scatter_add", in, 2, 2);
      expect_floats("scatter_add", in.first(1));
      const int64_t dim = attrs.integer("dim");
      expect_shape("scatter_add", "x", in[0], gathered("scatter_add", in[0], in[1], dim));
      TensorInfo y = in[0];
      y.shape[static_cast<size_t>(dim)] = attrs.integer("size");
      return {y};
    },
    .rule = [](Infos in, const Attrs& attrs) -> RuleText {
      const std::string x = letters(in[0].shape.size());
      std::string y = x;
      y[static_cast<size_t>(attrs.integer("dim"))] = letters(x.size() + 1).back();
      return {x + "," + x.substr(0, in[1].shape.size()) + "->" + y};
    },
    .backward =
        [](GradBuilder& g) {
          g.set_in_grad(0, "gather", {g.out_grad(), g.in(1)}, {{"dim", g.attrs().integer("dim")}});
        },
    .no_gradient = 2,
    .kernel = {.name = "scatter_add",
               .cost = elementwise_cost<1>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y = x summed over the elements with that index; inputs x, index",
                                          .inputs = {{kMatrix}, ids(kColumn)},
                                          .attrs = {{"dim", int64_t{0}}, {"size", kRows}},
                                          .below = [](Infos, const Attrs& attrs) { return attrs.integer("size"); }};
                   }},
};

extern const LayerDef gather_layer = {
    .name = "gather",
    .doc =
        "Selects elements of x along a dim by an index, like torch.gather. Inputs: x and an index i32, which has the "
        "dims "
        "of x with any size in that dim; without the dims after it, it selects whole rows.",
    .fields = {integer("dim", "The indexed dim of x, other than the batch dim; -1 is the last.").required()},
    .min_inputs = 2,
    .max_inputs = 2,
    .emit =
        [](LayerContext& layer) {
          return layer.emit("gather", {{"dim", layer.sample_dim(layer.attrs.integer("dim"))}});
        },
};

extern const LayerDef scatter_add_layer = {
    .name = "scatter_add",
    .doc =
        "Sums elements of x by an index along a dim, like torch.scatter_add into zeros. Inputs: x and an index i32 "
        "with "
        "the dims of x; without the dims after `dim`, it sums whole rows.",
    .fields = {integer("dim", "The indexed dim of x, other than the batch dim; -1 is the last.").required(),
               integer("size", "Size of this dim in the output; indices range from 0 to size - 1.")
                   .required()
                   .at_least(1)
                   .at_most(kMaxSize)},
    .min_inputs = 2,
    .max_inputs = 2,
    .emit =
        [](LayerContext& layer) {
          return layer.emit("scatter_add", {{"dim", layer.sample_dim(layer.attrs.integer("dim"))},
                                            {"size", layer.attrs.integer("size")}});
        },
};

extern const OpFamily gather_family = {.ops = {&gather_op, &gather_grad_op, &scatter_add_op},
                                       .layers = {&gather_layer, &scatter_add_layer}};

}  // namespace trainctl
