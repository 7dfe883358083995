// c = a * b with numpy broadcasting. A gradient is summed to the shape of its operand.
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {

extern const OpDef mul_op = {
    .name = "mul",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_inputs("mul", in, 2, 2);
      expect_floats("mul", in);
      return {{broadcast_shape("mul", in[0].shape, in[1].shape), in[0].dtype}};
    },
    .rule = broadcast_rule,
    .backward =
        [](GradBuilder& g) {
          for (int i = 0; i < 2; ++i) {
            if (!g.needs_in_grad(i)) continue;
            const TensorId other = g.in(1 - i);
            const Shape shape = g.shape(g.in(i));
            if (shape == g.shape(g.out())) {
              g.set_in_grad(i, "mul", {g.out_grad(), other});
              continue;
            }
            const auto product = g.emit("mul", {g.out_grad(), other}, {}, {g.out()}, i == 0 ? "product0" : "product1");
            g.set_in_grad(i, "sum_to", product, {{"shape", shape}});
          }
        },
    .kernel = {.name = "mul",
               .element = [](const Attrs&) -> std::string { return "*"; },
               .channels_last = elementwise_images,
               .cost = elementwise_cost<1>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "c = a * b, broadcast", .inputs = {{kMatrix}, {kMatrix}}};
                   }},
};

extern const LayerDef mul_layer = {
    .name = "mul",
    .doc = "Product of two inputs, element by element, broadcast as in numpy.",
    .min_inputs = 2,
    .max_inputs = 2,
    .emit = [](LayerContext& layer) { return layer.emit("mul"); },
};

extern const OpFamily mul_family = {.ops = {&mul_op}, .layers = {&mul_layer}};

}  // namespace trainctl
