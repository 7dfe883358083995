// C[.., m, n] = A[.., m, k] * B[k, n] (or B[.., k, n]); each side may be transposed. matmul_weight_grad contracts
// all leading dims: dW[n, k] = dY^T X, or dW[k, n] = X^T dY with kn. Bias and relu are part of the product; what
// else the compiler fused runs after it.
#include "engine/base/error.h"
#include "engine/ops/cpu_kernels.h"
#include "engine/ops/matmul/product_cpu.h"
#include "engine/ops/matmul/product_shape.h"

namespace trainctl {
namespace {

CpuKernel in_order(std::vector<CpuKernel> kernels) {
  if (kernels.size() == 1) return kernels[0];
  return [kernels = std::move(kernels)] {
    for (const CpuKernel& kernel : kernels) kernel();
  };
}

/// The kernel of an op that was fused, on operands of its own.
CpuKernel apart(PrepareCpuKernel prepare, const KernelCall& call, std::vector<TensorArg> in, TensorArg out) {
  KernelCall one = call;
  one.in = std::move(in);
  one.out = {std::move(out)};
  return prepare(one);
}

}  // namespace

CpuKernel prepare_matmul(const KernelCall& call) {
  const TensorArg &a = call.in[0], &b = call.in[1], &c = call.out[0];
  cpu::Product p{.a = a.as<float>(), .b = b.as<float>(), .c = c.as<float>()};
  set_matmul_shape(call, p);
  p.bias = call.attrs.flag("bias") ? call.in[2].as<float>() : nullptr;
  p.relu = call.attrs.text("activation") == "relu";
  p.threads = call.threads;
  const TensorArg& before = call.out.size() > 1 ? call.out[1] : c;
  p.c = before.as<float>();
  std::vector<CpuKernel> kernels = {cpu::prepare_product(p)};
  if (call.attrs.text("activation") == "gelu") kernels.push_back(apart(prepare_gelu, call, {before}, c));
  const std::string slope = call.attrs.text("activation_grad");
  if (!slope.empty()) {
    const PrepareCpuKernel grad = slope == "relu" ? prepare_relu_grad : prepare_gelu_grad;
    kernels.push_back(apart(grad, call, {c, call.in.back()}, c));
  }
  return in_order(std::move(kernels));
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
  if (call.out.size() > 1) kernels.push_back(apart(prepare_bias_grad, call, {dy}, call.out[1]));
  return in_order(std::move(kernels));
}

}  // namespace trainctl
