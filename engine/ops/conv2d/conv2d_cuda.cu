// The convolution kernels of GPUs: cuDNN computes them, then the kernels of bias and activation run on the result.
// For images that are channels last cuDNN wants weights [k, r, s, c]: they are rearranged in scratch memory, and so is
// their gradient, which is then added to the one of earlier micro-batches.
#include "engine/ops/conv2d/conv_shape.h"
#include "engine/ops/cuda/cudnn_plans.h"
#include "engine/ops/cuda/launch_cuda.h"
#include "engine/ops/fused_kernels.h"

namespace trainctl {
namespace {

using cuda::CudnnConvolution;
using cuda::CudnnPlanPtr;
using cuda::CudnnTensor;

constexpr int kThreads = 256;

/// [k, c, pixels] to [k, pixels, c], or back; to what is there it may be added.
template <class From, class To>
__global__ void __launch_bounds__(kThreads)
    rearrange(const From* from, To* to, int64_t size, int64_t rows, int64_t columns, bool add) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;  // of `to`: [k, columns, rows]
  if (i >= size) return;
  const int64_t line = i / rows, row = i - line * rows, k = line / columns, column = line - k * columns;
  const float value = to_f32(from[(k * rows + row) * columns + column]);
  to[i] = from_f32<To>(add ? to_f32(to[i]) + value : value);
}

template <class From, class To>
void run_rearrange(CudaStream stream, const void* from, void* to, int64_t size, int64_t rows, int64_t columns,
                   bool add) {
  launch(rearrange<From, To>, static_cast<unsigned>(ceil_div(size, kThreads)), kThreads, 0, stream, "conv2d weights",
         static_cast<const From*>(from), static_cast<To*>(to), size, rows, columns, add);
}

CudnnTensor images(const Images& i, bool channels_last) {
  const int64_t height = i.size[0], width = i.size[1];
  CudnnTensor tensor{{i.n, i.c, height, width}, {i.c * height * width, height * width, width, 1}};
  if (channels_last) tensor.strides = {i.c * height * width, 1, width * i.c, i.c};
  return tensor;
}

CudnnTensor weights(const ConvShape& s) { return images({s.y.c, s.x.c / s.groups, s.window.kernel}, s.channels_last); }

CudnnPlanPtr plan_of(const CudaKernelCall& call, const ConvShape& s, CudnnConvolution::Kind kind, DType type) {
  if (!cuda::cudnn_fault().empty()) throw EnvError("conv2d on a GPU needs cuDNN: " + cuda::cudnn_fault());
  CudnnConvolution c;
  c.kind = kind;
  c.x = images(s.x, s.channels_last);
  c.w = weights(s);
  c.y = images(s.y, s.channels_last);
  c.before = {s.window.before[0], s.window.before[1]};
  for (size_t d = 0; d < 2; ++d) {
    // As much after the image as before it if that gives the same windows, since engines are made for that; else just
    // what the last window needs.
    const int64_t before = s.window.before[d], stride = s.window.stride[d], reach = s.window.reach(d);
    const bool even = (s.x.size[d] + 2 * before - reach) / stride + 1 == s.y.size[d];
    c.after.push_back(even ? before : (s.y.size[d] - 1) * stride + reach - s.x.size[d] - before);
  }
  c.stride = {s.window.stride[0], s.window.stride[1]};
  c.dilation = {s.window.dilation[0], s.window.dilation[1]};
  c.dtype = type;
  c.w_dtype = kind == CudnnConvolution::Kind::weight ? DType::f32 : type;
  c.tf32 = call.tf32 || call.attrs.flag("tf32");
  CudnnPlanPtr plan = cudnn_plan(c);
  if (plan == nullptr)
    throw EnvError("cuDNN has no deterministic convolution of at most 256 MB of workspace for images " +
                   to_string(c.x.dims) + " and weights " + to_string(c.w.dims));
  return plan;
}

constexpr int64_t kAlignment = 256;

/// Room for rearranged weights in front of the plan's workspace; 0: they stay as they are.
int64_t weight_bytes(const ConvShape& s, const TensorArg& w, DType type) {
  const bool as_it_is = !s.channels_last || w.shape[1] == 1 || w.shape[2] * w.shape[3] == 1;
  return as_it_is ? 0 : ceil_div(w.size() * byte_size(type), kAlignment) * kAlignment;
}

/// Runs a plan whose second operand is the weight.
CudaKernel with_weights(const CudaKernelCall& call, const ConvShape& s, CudnnConvolution::Kind kind,
                        const TensorArg& in, const TensorArg& w, const TensorArg& out) {
  const CudnnPlanPtr plan = plan_of(call, s, kind, in.dtype);
  const int64_t room = weight_bytes(s, w, w.dtype);
  call.scratch->need(room + plan->workspace());
  return [=, scratch = call.scratch](CudaStream stream) {
    auto* memory = static_cast<std::byte*>(scratch->memory());
    const void* weight = w.data;
    if (room > 0) {
      with_float_type(w.dtype, [&](auto t) {
        using T = decltype(t);
        run_rearrange<T, T>(stream, w.data, memory, w.size(), w.shape[1], w.shape[2] * w.shape[3], false);
      });
      weight = memory;
    }
    plan->run(stream, {in.data, weight, out.data}, memory + room);
  };
}

CudaKernel in_order(std::vector<CudaKernel> kernels) {
  if (kernels.size() == 1) return kernels[0];
  return [kernels = std::move(kernels)](CudaStream stream) {
    for (const CudaKernel& kernel : kernels) kernel(stream);
  };
}

/// The kernel of a fused op, with its own operands; of a bias, along the channels.
CudaKernel apart(const CudaKernelCall& call, const KernelDef& def, std::vector<TensorArg> in, TensorArg out) {
  const CudaKernelDef* kernel = find_cuda_kernel(def.name);
  check(kernel != nullptr, std::string("no CUDA kernel of ") + def.name);
  CudaKernelCall one = call;
  one.in = std::move(in);
  one.out = {std::move(out)};
  if (!is_channels_last(call.attrs)) one.attrs.set("dim", int64_t{1});
  return kernel->prepare(one);
}

CudaKernel prepare_conv2d(const CudaKernelCall& call) {
  const TensorArg &x = call.in[0], &w = call.in[1], &y = call.out[0];
  const Epilogue epilogue = epilogue_of(call.attrs);
  const ConvShape s = ConvShape::of(call.attrs, x.shape, w.shape, y.shape);
  const TensorArg sums = epilogue.keep_input ? call.out[1] : y;  // the activation's input
  std::vector<CudaKernel> kernels = {with_weights(call, s, CudnnConvolution::Kind::forward, x, w, sums)};
  if (epilogue.bias) kernels.push_back(apart(call, bias_kernel(), {sums, call.in[2]}, sums));
  if (epilogue.activation != Activation::none)
    kernels.push_back(apart(call, activation_kernel(epilogue.activation), {sums}, y));
  return in_order(std::move(kernels));
}

CudaKernel prepare_conv2d_input_grad(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &w = call.in[1], &dx = call.out[0];
  const ConvShape s = ConvShape::of(call.attrs, dx.shape, w.shape, dy.shape);
  return with_weights(call, s, CudnnConvolution::Kind::data, dy, w, dx);
}

CudaKernel prepare_conv2d_weight_grad(const CudaKernelCall& call) {
  const TensorArg &x = call.in[0], &dy = call.in[1], &dw = call.out[0];
  const ConvShape s = ConvShape::of(call.attrs, x.shape, dw.shape, dy.shape);
  const CudnnPlanPtr plan = plan_of(call, s, CudnnConvolution::Kind::weight, x.dtype);
  const bool direct = weight_bytes(s, dw, DType::f32) == 0 && !dw.accumulate && dw.dtype == DType::f32;
  const int64_t room = direct ? 0 : ceil_div(dw.size() * byte_size(DType::f32), kAlignment) * kAlignment;
  call.scratch->need(room + plan->workspace());
  const bool last = s.channels_last;
  std::vector<CudaKernel> kernels = {[=, scratch = call.scratch](CudaStream stream) {
    auto* memory = static_cast<std::byte*>(scratch->memory());
    plan->run(stream, {dy.data, x.data, room > 0 ? memory : dw.data}, memory + room);
    if (room == 0) return;
    const int64_t pixels = dw.shape[2] * dw.shape[3], rows = last ? pixels : dw.shape[1];
    with_float_type(dw.dtype, [&](auto t) {
      using T = decltype(t);
      // Channels first: rows of the same order, as [k * c, pixels, 1].
      if (last) return run_rearrange<float, T>(stream, memory, dw.data, dw.size(), rows, dw.shape[1], dw.accumulate);
      run_rearrange<float, T>(stream, memory, dw.data, dw.size(), 1, dw.size(), dw.accumulate);
    });
  }};
  if (epilogue_of(call.attrs).bias_grad) kernels.push_back(apart(call, bias_grad_kernel(), {dy}, call.out[1]));
  return in_order(std::move(kernels));
}

}  // namespace

extern const CudaKernels conv2d_cuda = {{"conv2d", prepare_conv2d},
                                        {"conv2d_input_grad", prepare_conv2d_input_grad},
                                        {"conv2d_weight_grad", prepare_conv2d_weight_grad}};

}  // namespace trainctl
