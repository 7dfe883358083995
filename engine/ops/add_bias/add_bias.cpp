// y[.., n, ..] = x[.., n, ..] + b[n] along attr dim, by default the last; db[n] = dy summed over all other dims.
#include <algorithm>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

/// The attribute `dim`; -1: the last dim.
int bias_dim(const Attrs& attrs) { return static_cast<int>(attrs.integer("dim", -1)); }

size_t bias_dim(const TensorInfo& x, const Attrs& attrs) {
  const int dim = bias_dim(attrs);
  return dim < 0 ? x.shape.size() - 1 : static_cast<size_t>(dim);
}

/// The form for images with the bias along their channels, which are then the last dim.
std::optional<ChannelsLast> channels_last(const Attrs& attrs, unsigned outputs) {
  if (bias_dim(attrs) != 1) return {};
  ChannelsLast form{attrs, 1, outputs};
  form.attrs.erase("dim");
  return form;
}

}  // namespace

extern const OpDef add_bias_op = {
    .name = "add_bias",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("add_bias", in, 2, 2);
      expect_floats("add_bias", in);
      expect_ndim("add_bias", in[0], static_cast<size_t>(std::max(0, bias_dim(attrs)) + 1));
      expect_shape("add_bias", "the bias", in[1], {in[0].shape[bias_dim(in[0], attrs)]});
      return {in[0]};
    },
    .rule = [](Infos in, const Attrs& attrs) -> RuleText {
      std::string dims = letters(in[0].shape.size() - 1, "n");
      dims.insert(bias_dim(in[0], attrs), "n");
      return {dims + ",n->" + dims};
    },
    .backward =
        [](GradBuilder& g) {
          g.pass_in_grad(0, g.out_grad());
          g.set_in_grad(1, "bias_grad", {g.out_grad()}, g.attrs());
        },
    .kernel = {.name = "add_bias",
               .in_place = InPlace::first_on_first,
               .as_epilogue =
                   [](const Attrs& attrs) {
                     return EpilogueRole{EpilogueStep::bias, Activation::none, bias_dim(attrs)};
                   },
               .element = [](const Attrs& attrs) -> std::string { return bias_dim(attrs) < 0 ? "+" : ""; },
               .channels_last = [](Infos, const Attrs& attrs) { return channels_last(attrs, 1); },
               .cost = elementwise_cost<1>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y = x + b of the last dim, or of attr dim",
                                          .inputs = {{kMatrix}, {kRow}},
                                          .optional = {{"dim", int64_t{1}}}};
                   }},
};

/// dy -> db
extern const OpDef bias_grad_op = {
    .name = "bias_grad",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("bias_grad", in, 1, 1);
      expect_ndim("bias_grad", in[0], static_cast<size_t>(std::max(0, bias_dim(attrs)) + 1));
      return {{{in[0].shape[bias_dim(in[0], attrs)]}}};
    },
    .kernel = {.name = "bias_grad",
               .accumulates = 1,
               .takes = bits(EpilogueStep::descend),
               .as_epilogue =
                   [](const Attrs& attrs) {
                     return EpilogueRole{EpilogueStep::bias_grad, Activation::none, bias_dim(attrs)};
                   },
               .channels_last = [](Infos, const Attrs& attrs) { return channels_last(attrs, 0); },
               .row_operands =
                   [](const Attrs& attrs) {
                     return RowOperands{attrs.has("dim") ? 0u : 1u, 0};
                   },
               .cost = reduction_cost<1>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "db = dy summed over all but the last dim, or attr dim",
                                          .inputs = {{kMatrix}},
                                          .optional = {{"dim", int64_t{1}}}};
                   }},
};

extern const OpFamily add_bias_family = {.ops = {&add_bias_op, &bias_grad_op}};

}  // namespace trainctl
