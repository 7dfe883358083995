// y = the largest x of each window, as in PyTorch: padding is smaller than any number, and a NaN is larger. dx = dy at
// the first largest pixel of its window, row by row; the kernel of the gradient finds it again in x, which relu's
// backward or the layer before keeps anyway.
#include "engine/ops/examples.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/op_family.h"
#include "engine/ops/pool_layer.h"

namespace trainctl {
namespace {

/// The scratch records which pixel of each window is the largest, in at most 4 bytes (max_pool2d_cuda.cu).
int64_t marks_scratch(const std::vector<Shape>& inputs, const std::vector<Shape>&) {
  return 4 * num_elements(inputs[0]);
}

KernelExample max_pool_example(const char* what, std::vector<KernelExample::Input> inputs) {
  KernelExample shown = pool_example(what, std::move(inputs));
  shown.optional.set("dilation", Ints{1, 1});
  return shown;
}

constexpr KernelDef kernel_of_gradient() {
  KernelDef kernel = pool_kernel<2>("max_pool2d_grad", [] {
    return max_pool_example("dx; inputs dy, x", {{kPoolOutput}, {kPoolInput}});
  });
  kernel.most_cuda_scratch = marks_scratch;
  return kernel;
}

}  // namespace

extern const OpDef max_pool2d_op = {
    .name = "max_pool2d",
    .infer = [](Infos in, const Attrs& attrs) { return infer_pool("max_pool2d", in, attrs); },
    .rule = pool_rule,
    .backward =
        [](GradBuilder& g) {
          g.set_in_grad(0, "max_pool2d_grad", {g.out_grad(), g.in(0)}, g.attrs());
        },
    .kernel = pool_kernel<1>("max_pool2d",
                             [] { return max_pool_example("y = the largest x of each window", {{kPoolInput}}); }),
};

/// (dy, x) -> dx
extern const OpDef max_pool2d_grad_op = {
    .name = "max_pool2d_grad",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("max_pool2d_grad", in, 2, 2);
      return infer_pool_grad("max_pool2d_grad", in[0], in[1], attrs);
    },
    .kernel = kernel_of_gradient(),
};

extern const LayerDef max_pool2d_layer = {
    .name = "max_pool2d",
    .doc = "Max pooling of images [n, c, h, w].",
    .fields = pool_fields({per_dim("dilation", "Distance between the pixels of a window.")
                               .defaults(Ints{1})
                               .at_least(1)
                               .at_most(kMaxSize)}),
    .emit = [](LayerContext& layer) { return layer.emit("max_pool2d", pool_attrs(layer)); },
};

extern const OpFamily max_pool2d_family = {
    .ops = {&max_pool2d_op, &max_pool2d_grad_op}, .layers = {&max_pool2d_layer}, .profile_part = "pools"};

}  // namespace trainctl
