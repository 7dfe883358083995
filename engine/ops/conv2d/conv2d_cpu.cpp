// The convolution kernels of CPUs use oneDNN. It computes in formats of its own choice: images that are channels last
// stay as they are, but NCHW images are reordered before and after, and so are weights, which are small. Measured on
// a processor with AVX-512 (tests/bench/NOTEBOOK.md), channels last is within a tenth of oneDNN's blocked formats
// without their reorders, where plain NCHW runs at a ninth of the speed.
#include <cstdlib>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>

#include "engine/base/error.h"
#include "engine/ops/conv2d/conv_shape.h"
#include "engine/ops/cpu/kernels_in_order_cpu.h"
#include "engine/ops/cpu/onednn_cpu.h"
#include "engine/ops/fused_kernels.h"

namespace trainctl {
namespace {

using cpu::Steps;
using dnnl::memory;
using ConvDims = memory::dims;
using Tag = memory::format_tag;

/// The operands as oneDNN describes them: `plain` as they are in memory, `best` with the format left to oneDNN.
struct Descs {
  memory::desc plain, best;
};

Descs images(const Images& i, bool channels_last) {
  const ConvDims dims{i.n, i.c, i.size[0], i.size[1]};
  const memory::desc plain(dims, memory::data_type::f32, channels_last ? Tag::nhwc : Tag::nchw);
  return {plain, channels_last ? plain : memory::desc(dims, memory::data_type::f32, Tag::any)};
}

Descs weights(const ConvShape& s) {
  const int64_t k = s.y.c / s.groups, c = s.x.c / s.groups, height = s.window.kernel[0], width = s.window.kernel[1];
  const ConvDims dims = s.groups == 1 ? ConvDims{k, c, height, width} : ConvDims{s.groups, k, c, height, width};
  return {{dims, memory::data_type::f32, s.groups == 1 ? Tag::oihw : Tag::goihw},
          {dims, memory::data_type::f32, Tag::any}};
}

/// Window, strides and padding in oneDNN's terms.
struct Placement {
  ConvDims stride, dilation, before, after;

  explicit Placement(const ConvShape& s) {
    for (size_t d = 0; d < 2; ++d) {
      stride.push_back(s.window.stride[d]);
      dilation.push_back(s.window.dilation[d] - 1);
      before.push_back(s.window.before[d]);
      // For oneDNN, pixels that the last window does not reach are not padding.
      const auto& [size, windows] = std::pair(s.x.size[d], s.y.size[d]);
      after.push_back((windows - 1) * s.window.stride[d] + s.window.reach(d) - size - s.window.before[d]);
    }
  }
};

/// The forward convolution as oneDNN describes it; its gradients need this description too.
dnnl::convolution_forward::primitive_desc forward_of(const ConvShape& s, bool bias, const dnnl::primitive_attr& attr) {
  const Descs x = images(s.x, s.channels_last), w = weights(s), y = images(s.y, s.channels_last);
  const memory::desc b({s.y.c}, memory::data_type::f32, Tag::a);
  const Placement p(s);
  const auto kind = dnnl::prop_kind::forward_training;
  const auto algorithm = dnnl::algorithm::convolution_direct;
#if DNNL_VERSION_MAJOR >= 3
  if (bias)
    return {cpu::engine(), kind, algorithm, x.best, w.best, b, y.best, p.stride, p.dilation, p.before, p.after, attr};
  return {cpu::engine(), kind, algorithm, x.best, w.best, y.best, p.stride, p.dilation, p.before, p.after, attr};
#else
  using Desc = dnnl::convolution_forward::desc;
  const Desc desc = bias ? Desc(kind, algorithm, x.best, w.best, b, y.best, p.stride, p.dilation, p.before, p.after)
                         : Desc(kind, algorithm, x.best, w.best, y.best, p.stride, p.dilation, p.before, p.after);
  return {desc, attr, cpu::engine()};
#endif
}

/// Convolution, bias and activation by oneDNN, which fuses the bias and relu; other activations are a second kernel.
CpuKernel prepare_conv2d(const KernelCall& call) {
  const TensorArg &x = call.in[0], &w = call.in[1], &y = call.out[0];
  const Epilogue epilogue = epilogue_of(call.attrs);
  const ConvShape s = ConvShape::of(call.attrs, x.shape, w.shape, y.shape);
  const bool relu = epilogue.activation == Activation::relu && !epilogue.keep_input;
  dnnl::primitive_attr attr = cpu::own_scratchpad();
  dnnl::post_ops after;
#if DNNL_VERSION_MAJOR >= 3
  if (relu) after.append_eltwise(dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
#else
  if (relu) after.append_eltwise(1.0f, dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
#endif
  attr.set_post_ops(after);
  const TensorArg& before = epilogue.keep_input ? call.out[1] : y;
  Steps steps(call.threads);
  const auto made = forward_of(s, epilogue.bias, attr);
  const Descs images_x = images(s.x, s.channels_last), images_y = images(s.y, s.channels_last);
  steps.read(DNNL_ARG_SRC, x.data, images_x.plain, made.src_desc());
  steps.read(DNNL_ARG_WEIGHTS, w.data, weights(s).plain, made.weights_desc());
  if (epilogue.bias) steps.read(DNNL_ARG_BIAS, call.in[2].data, made.bias_desc(), made.bias_desc());
  steps.write(DNNL_ARG_DST, before.data, images_y.plain, made.dst_desc());
  steps.finish(dnnl::convolution_forward(made), made.scratchpad_desc());
  std::vector<CpuKernel> kernels = {steps.kernel()};
  if (epilogue.activation != Activation::none && !relu)
    kernels.push_back(cpu::separate_kernel(activation_kernel(epilogue.activation), call, {before}, {y}));
  return cpu::in_order(std::move(kernels));
}

CpuKernel prepare_conv2d_input_grad(const KernelCall& call) {
  const TensorArg &dy = call.in[0], &w = call.in[1], &dx = call.out[0];
  const ConvShape s = ConvShape::of(call.attrs, dx.shape, w.shape, dy.shape);
  const Descs x = images(s.x, s.channels_last), of_w = weights(s), y = images(s.y, s.channels_last);
  const Placement p(s);
  const auto forward = forward_of(s, false, cpu::own_scratchpad());
  const auto algorithm = dnnl::algorithm::convolution_direct;
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::convolution_backward_data::primitive_desc made(cpu::engine(), algorithm, x.best, of_w.best, y.best,
                                                             p.stride, p.dilation, p.before, p.after, forward,
                                                             cpu::own_scratchpad());
#else
  const dnnl::convolution_backward_data::primitive_desc made(
      dnnl::convolution_backward_data::desc(algorithm, x.best, of_w.best, y.best, p.stride, p.dilation, p.before,
                                            p.after),
      cpu::own_scratchpad(), cpu::engine(), forward);
#endif
  Steps steps(call.threads);
  steps.read(DNNL_ARG_DIFF_DST, dy.data, y.plain, made.diff_dst_desc());
  steps.read(DNNL_ARG_WEIGHTS, w.data, of_w.plain, made.weights_desc());
  steps.write(DNNL_ARG_DIFF_SRC, dx.data, x.plain, made.diff_src_desc());
  steps.finish(dnnl::convolution_backward_data(made), made.scratchpad_desc());
  return steps.kernel();
}

CpuKernel prepare_conv2d_weight_grad(const KernelCall& call) {
  const TensorArg &x = call.in[0], &dy = call.in[1], &dw = call.out[0];
  const bool bias = epilogue_of(call.attrs).bias_grad;
  const ConvShape s = ConvShape::of(call.attrs, x.shape, dw.shape, dy.shape);
  const Descs of_x = images(s.x, s.channels_last), w = weights(s), y = images(s.y, s.channels_last);
  const memory::desc b({s.y.c}, memory::data_type::f32, Tag::a);
  const Placement p(s);
  const auto forward = forward_of(s, bias, cpu::own_scratchpad());
  const auto algorithm = dnnl::algorithm::convolution_direct;
#if DNNL_VERSION_MAJOR >= 3
  const auto made = bias ? dnnl::convolution_backward_weights::primitive_desc(
                               cpu::engine(), algorithm, of_x.best, w.best, b, y.best, p.stride, p.dilation, p.before,
                               p.after, forward, cpu::own_scratchpad())
                         : dnnl::convolution_backward_weights::primitive_desc(
                               cpu::engine(), algorithm, of_x.best, w.best, y.best, p.stride, p.dilation, p.before,
                               p.after, forward, cpu::own_scratchpad());
#else
  using Desc = dnnl::convolution_backward_weights::desc;
  const Desc desc = bias ? Desc(algorithm, of_x.best, w.best, b, y.best, p.stride, p.dilation, p.before, p.after)
                         : Desc(algorithm, of_x.best, w.best, y.best, p.stride, p.dilation, p.before, p.after);
  const dnnl::convolution_backward_weights::primitive_desc made(desc, cpu::own_scratchpad(), cpu::engine(), forward);
#endif
  Steps steps(call.threads);
  steps.read(DNNL_ARG_SRC, x.data, of_x.plain, made.src_desc());
  steps.read(DNNL_ARG_DIFF_DST, dy.data, y.plain, made.diff_dst_desc());
  steps.write(DNNL_ARG_DIFF_WEIGHTS, dw.data, w.plain, made.diff_weights_desc(), dw.accumulate);
  if (bias) {
    const TensorArg& db = call.out[1];
    steps.write(DNNL_ARG_DIFF_BIAS, db.data, b, made.diff_bias_desc(), db.accumulate);
  }
  steps.finish(dnnl::convolution_backward_weights(made), made.scratchpad_desc());
  return steps.kernel();
}

}  // namespace

extern const CpuKernels conv2d_cpu = {{"conv2d", prepare_conv2d},
                                      {"conv2d_input_grad", prepare_conv2d_input_grad},
                                      {"conv_transpose2d", prepare_conv2d_input_grad},
                                      {"conv2d_weight_grad", prepare_conv2d_weight_grad}};

}  // namespace trainctl
