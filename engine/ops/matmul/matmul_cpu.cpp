// C[.., m, n] = A[.., m, k] * B[k, n] (or B[.., k, n]); each side may be transposed. matmul_weight_grad contracts
// all leading dims: dW[n, k] = dY^T X, or dW[k, n] = X^T dY with kn. The product includes a bias and relu, and is added
// to a copy of the residual; other fused ops run after it. matmul_fp8 is the same product of the factors' values.
#include <algorithm>
#include <memory>

#include "engine/graph/e4m3.h"
#include "engine/graph/e5m2.h"
#include "engine/ops/cpu/kernels_in_order_cpu.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/fused_kernels.h"
#include "engine/ops/matmul/product_cpu.h"
#include "engine/ops/matmul/product_shape.h"
#include "engine/ops/quantise/quantised.h"

namespace trainctl {
namespace {

/// The product with its epilogue: residual, bias and relu in the product; other activations and the slope are kernels
/// after it.
CpuKernel prepare_matmul(const KernelCall& call) {
  const TensorArg &a = call.in[0], &b = call.in[1], &c = call.out[0];
  cpu::Product p{.a = a.as<float>(), .b = b.as<float>(), .c = c.as<float>()};
  set_matmul_shape(call, p);
  const Epilogue epilogue = epilogue_of(call.attrs);
  p.bias = epilogue.bias ? call.in[2].as<float>() : nullptr;
  p.relu = epilogue.activation == Activation::relu && !epilogue.residual;
  p.threads = call.threads;
  const TensorArg& before = epilogue.keep_input ? call.out[1] : c;
  p.c = before.as<float>();
  std::vector<CpuKernel> kernels;
  if (epilogue.residual) {
    kernels.push_back([from = call.in.back().as<float>(), to = p.c, n = c.size(), threads = call.threads] {
      cpu::over_elements(threads, n,
                         [=](int64_t begin, int64_t end) { std::copy(from + begin, from + end, to + begin); });
    });
    p.accumulate = true;
  }
  kernels.push_back(cpu::prepare_product(p));
  const bool apart_from_product = epilogue.activation != Activation::none && !p.relu;
  if (apart_from_product)
    kernels.push_back(cpu::separate_kernel(activation_kernel(epilogue.activation), call, {before}, {c}));
  if (epilogue.slope != Activation::none)
    kernels.push_back(cpu::separate_kernel(slope_kernel(epilogue.slope), call, {c, call.in.back()}, {c}));
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
    kernels.push_back(cpu::separate_kernel(bias_grad_kernel(), call, {dy}, {call.out[1]}));
  return cpu::in_order(std::move(kernels));
}

/// A factor in 8 bits (quantise/quantised.h), and the numbers that it represents.
struct Widened {
  const uint8_t* words;
  const float* scales;
  int64_t lines, length;
  int64_t columns;  ///< columns of the scales of squares; 0: the scales are of lines
  bool tensor, e5m2;
  std::vector<float> values;

  float scale_of(int64_t l, int64_t part) const {
    if (tensor) return scales[0];
    return columns > 0 ? scales[l / kScaledTogether * columns + part] : scales[part * lines + l];
  }
  void widen() {
    for (int64_t l = 0; l < lines; ++l) {
      for (int64_t i = 0; i < length; ++i) {
        const uint8_t bits = words[l * length + i];
        values[static_cast<size_t>(l * length + i)] =
            (e5m2 ? from_e5m2(bits) : from_e4m3(bits)) * scale_of(l, i / kScaledTogether);
      }
    }
  }
};

/// Factor `name` of the call, a or b.
std::shared_ptr<Widened> widened(const KernelCall& call, const std::string& name) {
  const size_t first = name == "a" ? 0 : 2;
  const TensorArg &words = call.in[first], &scales = call.in[first + 1];
  const int64_t lines = words.shape[0], length = words.shape[1] * 4;
  return std::make_shared<Widened>(Widened{words.as<uint8_t>(), scales.as<float>(), lines, length,
                                           call.attrs.flag(name + "_squares") ? scales.shape[1] : 0,
                                           call.attrs.flag("tensor"), call.attrs.flag(name + "_e5m2"),
                                           std::vector<float>(static_cast<size_t>(lines * length))});
}

/// Widens both factors from 8 bits to f32 and multiplies them.
CpuKernel prepare_matmul_fp8(const KernelCall& call) {
  const auto a = widened(call, "a"), b = widened(call, "b");
  const TensorArg& c = call.out[0];
  const Epilogue epilogue = epilogue_of(call.attrs);
  check(a->length == b->length, "matmul_fp8: this rank's factors have lines of one length");
  check(a->lines * b->lines == c.size(), "matmul_fp8: this rank's output does not have the product's size");
  cpu::Product p{.m = a->lines,
                 .n = b->lines,
                 .k = a->length,
                 .a = a->values.data(),
                 .b = b->values.data(),
                 .c = c.as<float>(),
                 .transpose_b = true,
                 .bias = epilogue.bias ? call.in[4].as<float>() : nullptr,
                 .accumulate = c.accumulate || epilogue.residual};
  p.threads = call.threads;
  const float* const residual = epilogue.residual ? call.in.back().as<float>() : nullptr;
  return [a, b, residual, c = p.c, size = c.size(), product = cpu::prepare_product(p)] {
    a->widen();
    b->widen();
    if (residual != nullptr) std::copy_n(residual, size, c);
    product();
  };
}

CpuKernel of_two(const KernelCall& call, PrepareCpuKernel prepare, std::vector<TensorArg> in, const TensorArg& out,
                 Attrs attrs = {}) {
  KernelCall one = call;
  one.in = std::move(in);
  one.out = {out};
  one.attrs = std::move(attrs);
  return prepare(one);
}

/// Multiplies a result by attr factor.
void add_factor(const KernelCall& call, const TensorArg& out, std::vector<CpuKernel>& kernels) {
  const auto factor = static_cast<float>(call.attrs.number("factor", 1.0));
  if (factor == 1.0f) return;
  kernels.push_back([factor, y = out.as<float>(), n = out.size()] {
    std::for_each(y, y + n, [factor](float& value) { value *= factor; });
  });
}

/// A product for each gradient.
CpuKernel prepare_skinny_grads(const KernelCall& call) {
  const TensorArg &dy = call.in[0], &w = call.in[1], &x = call.in[2];
  std::vector<CpuKernel> kernels = {of_two(call, prepare_matmul, {dy, w}, call.out[0]),
                                    of_two(call, prepare_matmul_weight_grad, {x, dy}, call.out[1])};
  add_factor(call, call.out[0], kernels);
  return cpu::in_order(std::move(kernels));
}

CpuKernel prepare_skinny_products(const KernelCall& call) {
  std::vector<CpuKernel> kernels;
  for (size_t i = 0; i < call.out.size(); ++i) {
    kernels.push_back(of_two(call, prepare_matmul, {call.in[0], call.in[i + 1]}, call.out[i], {{"transpose_b", true}}));
    add_factor(call, call.out[i], kernels);
  }
  return cpu::in_order(std::move(kernels));
}

CpuKernel prepare_skinny_weight_grads(const KernelCall& call) {
  std::vector<CpuKernel> kernels;
  for (size_t i = 0; i < call.out.size(); ++i)
    kernels.push_back(of_two(call, prepare_matmul_weight_grad, {call.in[0], call.in[i + 1]}, call.out[i]));
  return cpu::in_order(std::move(kernels));
}

}  // namespace

extern const CpuKernels matmul_cpu = {{"matmul", prepare_matmul},
                                      {"matmul_weight_grad", prepare_matmul_weight_grad},
                                      {"matmul_fp8", prepare_matmul_fp8},
                                      {"skinny_grads", prepare_skinny_grads},
                                      {"skinny_products", prepare_skinny_products},
                                      {"skinny_weight_grads", prepare_skinny_weight_grads}};

}  // namespace trainctl
