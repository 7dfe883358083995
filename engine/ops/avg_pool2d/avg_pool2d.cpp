// y = the mean of each window, as in PyTorch: with attr count_include_pad over all its pixels, padding (0) included,
// else over those in the image.
#include "engine/ops/examples.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/op_family.h"
#include "engine/ops/pool_layer.h"

namespace trainctl {
namespace {

KernelExample example_of(const char* what, const Shape& input) {
  KernelExample example = pool_example(what, {{input}});
  example.optional.set("count_include_pad", true);
  return example;
}

}  // namespace

extern const OpDef avg_pool2d_op = {
    .name = "avg_pool2d",
    .infer = [](Infos in, const Attrs& attrs) { return infer_pool("avg_pool2d", in, attrs); },
    .rule = pool_rule,
    .backward =
        [](GradBuilder& g) {
          const Images x = Images::of(g.shape(g.in(0)), is_channels_last(g.attrs()));
          Attrs attrs = g.attrs();
          attrs.set("size", Ints{x.size[0], x.size[1]});
          g.set_in_grad(0, "avg_pool2d_grad", {g.out_grad()}, attrs);
        },
    .kernel = pool_kernel<1>("avg_pool2d", [] { return example_of("y = the mean of each window", kPoolInput); }),
};

/// dy -> dx with the size of attr size [h, w]
extern const OpDef avg_pool2d_grad_op = {
    .name = "avg_pool2d_grad",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("avg_pool2d_grad", in, 1, 1);
      const Images dy = expect_images("avg_pool2d_grad", in[0], attrs);
      const Ints size = attrs.ints("size");
      const TensorInfo x{Images{dy.n, dy.c, {size[0], size[1]}}.shape(is_channels_last(attrs)), in[0].dtype};
      return infer_pool_grad("avg_pool2d_grad", in[0], x, attrs);
    },
    .kernel = pool_kernel<1>("avg_pool2d_grad",
                             [] {
                               KernelExample example = example_of("dx of attr size; input dy", kPoolOutput);
                               example.attrs.set("size", Ints{112, 112});
                               return example;
                             }),
};

extern const LayerDef avg_pool2d_layer = {
    .name = "avg_pool2d",
    .doc = "Average pooling of images [n, c, h, w].",
    .fields = pool_fields({flag("count_include_pad", true, "Include the padding in the mean as pixels of value 0.")}),
    .emit =
        [](LayerContext& layer) {
          Attrs attrs = pool_attrs(layer);
          attrs.set("count_include_pad", layer.attrs.flag("count_include_pad"));
          return layer.emit("avg_pool2d", attrs);
        },
};

extern const OpFamily avg_pool2d_family = {
    .ops = {&avg_pool2d_op, &avg_pool2d_grad_op}, .layers = {&avg_pool2d_layer}, .profile_part = "pools"};

}  // namespace trainctl
