// The convolution kernels of GPUs. cuDNN computes a convolution, or, if it cannot, the engine's own kernel does. The
// kernels of bias and activation then run on the result, unless cuDNN has included them.
#include "engine/ops/conv2d/conv_library_cuda.h"
#include "engine/ops/conv2d/conv_tiles_cuda.h"
#include "engine/ops/cuda/kernels_in_order_cuda.h"
#include "engine/ops/cuda/launch_cuda.h"
#include "engine/ops/cuda/print_once.h"
#include "engine/ops/fused_kernels.h"

namespace trainctl {
namespace {

const char* name_of(ConvKind kind) {
  switch (kind) {
    case ConvKind::forward:
      return "the forward pass";
    case ConvKind::data:
      return "the input gradient";
    case ConvKind::weight:
      return "the weight gradient";
  }
  return "";
}

/// Computes the convolution, including the bias if the problem has one, by the engine's own kernel.
CudaKernel by_own_kernel(const ConvProblem& problem, CudaScratch* scratch) {
  if (problem.kind == ConvKind::weight) {
    if (CudaKernel tiles = weight_grad_by_tiles(problem.shape, problem.tensors, scratch)) return tiles;
  }
  CudaKernel sums = own_convolution(problem.kind, problem.shape, problem.tensors, scratch);
  if (!problem.finish) return sums;
  return [sums, finish = problem.finish(problem.tensors, scratch)](CudaStream stream) {
    sums(stream);
    finish(stream);
  };
}

/// The convolution by cuDNN or else by the engine's own kernel. Null in f16 if cuDNN does not compute it, because the
/// own kernel does not take f16.
CudaKernel convolution(const CudaKernelCall& call, ConvProblem problem) {
  const bool is_f16 = problem.tensors.x.dtype == DType::f16;
  problem.tf32 = call.tf32 || call.attrs.flag("tf32");
  if (const std::string& fault = cuda::cudnn_fault(); !fault.empty()) {
    print_once("convolutions use the built-in kernels, which are many times slower: " + fault);
    return is_f16 ? nullptr : by_own_kernel(problem, call.scratch);
  }
  std::string tried;
  if (CudaKernel by_library = library_convolution(problem, call.scratch, tried)) return by_library;
  const ConvTensors& t = problem.tensors;
  print_once("conv2d: cuDNN has no deterministic engine for " + std::string(name_of(problem.kind)) + " of images " +
             to_string(t.x.shape) + (problem.shape.channels_last ? " (channels last)" : "") + ", weights " +
             to_string(t.w.shape) + " in " + std::string(to_string(t.x.dtype)) +
             "; it uses the built-in kernel, which is many times slower. Tried: " + tried);
  return is_f16 ? nullptr : by_own_kernel(problem, call.scratch);
}

/// Prepares a fused op (bias or activation) as a separate kernel with operands `in` and `out`. A bias is added along
/// the channels.
CudaKernel apart(const CudaKernelCall& call, const KernelDef& def, std::vector<TensorArg> in, TensorArg out) {
  CudaKernelCall one = call;
  if (!is_channels_last(call.attrs)) one.attrs.set("dim", int64_t{1});
  return cuda::separate_kernel(def, one, std::move(in), {std::move(out)});
}

/// The kernels of bias and activation, from `sums` to y.
std::vector<CudaKernel> epilogue_kernels(const CudaKernelCall& call, const TensorArg& sums, const TensorArg& bias,
                                         const TensorArg& y) {
  const Epilogue epilogue = epilogue_of(call.attrs);
  std::vector<CudaKernel> kernels;
  if (epilogue.bias) kernels.push_back(apart(call, bias_kernel(), {sums, bias}, sums));
  if (epilogue.activation != Activation::none)
    kernels.push_back(apart(call, activation_kernel(epilogue.activation), {sums}, y));
  return kernels;
}

/// Returns whether cuDNN may have an engine that adds the bias, and applies the activation.
bool may_fuse(const CudaKernelCall& call, const Epilogue& epilogue) {
  return epilogue.bias && !epilogue.keep_input && call.in[2].dtype == call.out[0].dtype &&
         (epilogue.activation == Activation::none || epilogue.activation == Activation::relu);
}

/// Convolution, bias and activation: in one call of cuDNN if it may fuse them, otherwise one kernel after the other.
CudaKernel prepare_conv2d(const CudaKernelCall& call) {
  const TensorArg &x = call.in[0], &w = call.in[1], &y = call.out[0];
  const Epilogue epilogue = epilogue_of(call.attrs);
  const TensorArg sums = epilogue.keep_input ? call.out[1] : y;  // the activation's input
  ConvProblem problem{ConvKind::forward, ConvShape::of(call.attrs, x.shape, w.shape, y.shape), {x, w, sums}};
  const TensorArg bias = epilogue.bias ? call.in[2] : TensorArg{};
  if (may_fuse(call, epilogue)) {
    problem.tensors.bias = bias;
    problem.relu = epilogue.activation == Activation::relu;
    problem.finish = [call](const ConvTensors& t, CudaScratch* scratch) {
      CudaKernelCall on = call;
      on.scratch = scratch;
      return cuda::in_order(epilogue_kernels(on, t.y, t.bias, t.y));
    };
    return convolution(call, std::move(problem));
  }
  std::vector<CudaKernel> kernels = {convolution(call, std::move(problem))};
  if (!kernels[0]) return nullptr;
  for (CudaKernel& kernel : epilogue_kernels(call, sums, bias, y)) kernels.push_back(std::move(kernel));
  return cuda::in_order(std::move(kernels));
}

CudaKernel prepare_conv2d_input_grad(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &w = call.in[1], &dx = call.out[0];
  return convolution(call, {ConvKind::data, ConvShape::of(call.attrs, dx.shape, w.shape, dy.shape), {dx, w, dy}});
}

CudaKernel prepare_conv2d_weight_grad(const CudaKernelCall& call) {
  const TensorArg &x = call.in[0], &dy = call.in[1], &dw = call.out[0];
  std::vector<CudaKernel> kernels = {
      convolution(call, {ConvKind::weight, ConvShape::of(call.attrs, x.shape, dw.shape, dy.shape), {x, dw, dy}})};
  if (!kernels[0]) return nullptr;
  if (epilogue_of(call.attrs).bias_grad) kernels.push_back(apart(call, bias_grad_kernel(), {dy}, call.out[1]));
  return cuda::in_order(std::move(kernels));
}

}  // namespace

extern const CudaKernels conv2d_cuda = {{"conv2d", prepare_conv2d, kTakesF16},
                                        {"conv2d_input_grad", prepare_conv2d_input_grad, kTakesF16},
                                        {"conv_transpose2d", prepare_conv2d_input_grad, kTakesF16},
                                        {"conv2d_weight_grad", prepare_conv2d_weight_grad, kTakesF16}};

}  // namespace trainctl
