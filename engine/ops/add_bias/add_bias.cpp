// y[.., n] = x[.., n] + b[n]; db[n] = dy summed over everything before n.
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/op_family.h"

namespace trainctl {

extern const OpDef add_bias_op = {
    .name = "add_bias",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_inputs("add_bias", in, 2, 2);
      expect_floats("add_bias", in);
      expect_ndim("add_bias", in[0], 1);
      expect_shape("add_bias", "the bias", in[1], {in[0].shape.back()});
      return {in[0]};
    },
    .rule = [](Infos in, const Attrs&) -> RuleText {
      const std::string dims = letters(in[0].shape.size() - 1, "n") + "n";
      return {dims + ",n->" + dims};
    },
    .backward =
        [](GradBuilder& g) {
          g.pass_in_grad(0, g.out_grad());
          g.set_in_grad(1, "bias_grad", {g.out_grad()});
        },
    .kernel = {.name = "add_bias",
               .in_place = InPlace::first_on_first,
               .as_epilogue = [](const Attrs&) { return EpilogueRole{EpilogueStep::bias}; },
               .element = [](const Attrs&) -> std::string { return "+"; },
               .cost = elementwise_cost<1>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y = x + b of the last dim", .inputs = {{kMatrix}, {kRow}}};
                   }},
};

/// dy -> db
extern const OpDef bias_grad_op = {
    .name = "bias_grad",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_inputs("bias_grad", in, 1, 1);
      expect_ndim("bias_grad", in[0], 1);
      return {{{in[0].shape.back()}}};
    },
    .kernel = {.name = "bias_grad",
               .accumulates = 1,
               .takes = bits(EpilogueStep::descend),
               .as_epilogue = [](const Attrs&) { return EpilogueRole{EpilogueStep::bias_grad}; },
               .cost =
                   [](Infos in, Infos out, const Attrs&) {
                     Cost cost = traffic_cost(in, out, 0);
                     cost.flops = static_cast<double>(num_elements(in[0].shape));
                     return cost;
                   },
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "db = dy summed over all but the last dim", .inputs = {{kMatrix}}};
                   }},
};

extern const OpFamily add_bias_family = {.ops = {&add_bias_op, &bias_grad_op}};

}  // namespace trainctl
