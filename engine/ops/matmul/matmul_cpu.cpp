// C[.., m, n] = A[.., m, k] * B[k, n] (or B[.., k, n]); each side may be transposed. matmul_weight_grad contracts
// all leading dims: dW[n, k] = dY^T X, or dW[k, n] = X^T dY with kn. Bias and relu are part of the product; other
// fused ops run after it.
#include "engine/ops/cpu/kernels_in_order_cpu.h"
#include "engine/ops/fused_kernels.h"
#include "engine/ops/matmul/product_cpu.h"
#include "engine/ops/matmul/product_shape.h"

namespace trainctl {
namespace {

CpuKernel prepare_matmul(const KernelCall& call) {
  const TensorArg &a = call.in[0], &b = call.in[1], &c = call.out[0];
  cpu::Product p{.a = a.as<float>(), .b = b.as<float>(), .c = c.as<float>()};
  set_matmul_shape(call, p);
  const Epilogue epilogue = epilogue_of(call.attrs);
  p.bias = epilogue.bias ? call.in[2].as<float>() : nullptr;
  p.relu = epilogue.activation == Activation::relu;
  p.threads = call.threads;
  const TensorArg& before = epilogue.keep_input ? call.out[1] : c;
  p.c = before.as<float>();
  std::vector<CpuKernel> kernels = {cpu::prepare_product(p)};
  const bool apart_from_product = epilogue.activation != Activation::none && !p.relu;
  if (apart_from_product)
    kernels.push_back(cpu::kernel_apart(activation_kernel(epilogue.activation), call, {before}, c));
  if (epilogue.slope != Activation::none)
    kernels.push_back(cpu::kernel_apart(slope_kernel(epilogue.slope), call, {c, call.in.back()}, c));
  return cpu::in_order(std::move(kernels));
}

CpuKernel prepare_matmul_weight_grad(const KernelCall& call) {
  const TensorArg &x = call.in[0], &dy = call.in[1], &dw = call.out[0];
  const bool kn = call.attrs.flag("kn");
  const TensorArg &left = kn ? x : dy, &right = kn ? dy : x;
  cpu::Product p{
      .a = left.as<float>() + call.attrs.integer("first_row", 0), .b = right.as<float>(), .c = dw.as<float>()};
  set_weight_grad_shape(call, left, right, p);
  p.threads = call.threads;
  std::vector<CpuKernel> kernels = {cpu::prepare_product(p)};
  if (epilogue_of(call.attrs).bias_grad)
    kernels.push_back(cpu::kernel_apart(bias_grad_kernel(), call, {dy}, call.out[1]));
  return cpu::in_order(std::move(kernels));
}

}  // namespace

extern const CpuKernels matmul_cpu = {{"matmul", prepare_matmul}, {"matmul_weight_grad", prepare_matmul_weight_grad}};

}  // namespace trainctl
