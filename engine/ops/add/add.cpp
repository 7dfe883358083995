// c = a + b with numpy broadcasting. A gradient is summed to the shape of its operand.
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {

extern const OpDef add_op = {
    .name = "add",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_inputs("add", in, 2, 2);
      expect_floats("add", in);
      return {{broadcast_shape("add", in[0].shape, in[1].shape), in[0].dtype}};
    },
    .rule = broadcast_rule,
    .backward =
        [](GradBuilder& g) {
          for (int i = 0; i < 2; ++i) {
            const Shape shape = g.shape(g.in(i));
            if (shape == g.shape(g.out())) {
              g.pass_in_grad(i, g.out_grad());
            } else {
              g.set_in_grad(i, "sum_to", {g.out_grad()}, {{"shape", shape}});
            }
          }
        },
    .kernel = {.name = "add",
               .element = [](const Attrs&) -> std::string { return "+"; },
               .channels_last = elementwise_images,
               .cost = elementwise_cost<1>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "c = a + b, broadcast", .inputs = {{kMatrix}, {kMatrix}}};
                   }},
};

extern const LayerDef add_layer = {
    .name = "add",
    .doc = "Sum of two inputs, broadcast as in numpy.",
    .min_inputs = 2,
    .max_inputs = 2,
    .emit = [](LayerContext& layer) { return layer.emit("add"); },
};

extern const OpFamily add_family = {.ops = {&add_op}, .layers = {&add_layer}};

}  // namespace trainctl
