// matmul and matmul_weight_grad on a GPU: one Product for the whole call if there is one, else a plain product and then
// the kernels of the fused ops.
#include <algorithm>

#include "engine/base/error.h"
#include "engine/ops/cuda/kernels_in_order_cuda.h"
#include "engine/ops/cuda/launch_cuda.h"
#include "engine/ops/fused_kernels.h"
#include "engine/ops/matmul/product_cuda.h"
#include "engine/ops/matmul/product_shape.h"
#include "engine/ops/matmul/skinny_products.h"

namespace trainctl {

// skinny_products_cuda.cu
CudaKernel prepare_skinny_grads(const CudaKernelCall& call);
CudaKernel prepare_skinny_products(const CudaKernelCall& call);
CudaKernel prepare_skinny_weight_grads(const CudaKernelCall& call);

namespace {

using cuda::in_order;
using cuda::Product;

void set_types(Product& p, const TensorArg& a, const TensorArg& b, const TensorArg& c) {
  check(a.dtype == b.dtype, "the operands of a matrix product have one dtype");
  p.operands = a.dtype;
  p.result = c.dtype;
}

Product product_of_matmul(const CudaKernelCall& call) {
  const TensorArg &a = call.in[0], &b = call.in[1], &c = call.out[0];
  Product p{.a = a.data, .b = b.data, .c = c.data};
  set_types(p, a, b, c);
  set_matmul_shape(call, p);
  p.tf32 = (call.tf32 || call.attrs.flag("tf32")) && p.operands == DType::f32;
  return p;
}

/// A matmul whose fused ops run one after another.
CudaKernel unfused(const CudaKernelCall& call, const Product& plain) {
  const TensorArg& c = call.out[0];
  const Epilogue epilogue = epilogue_of(call.attrs);
  std::vector<CudaKernel> kernels;
  Product p = plain;
  TensorArg sums = epilogue.keep_input ? call.out[1] : c;  // the activation's input
  p.c = sums.data;
  if (epilogue.residual) p.residual = call.in.back().data;
  if (epilogue.bias) {
    p.bias = call.in[2].data;
    p.bias_type = call.in[2].dtype;
  }
  std::optional<CudaKernel> product = cuda::prepare_product(p, *call.scratch);
  if (!product && epilogue.bias) {
    p.bias = nullptr;
    product = cuda::prepare_product(p, *call.scratch);
    kernels.push_back(cuda::separate_kernel(bias_kernel(), call, {sums, call.in[2]}, {sums}));
  }
  check(product.has_value(), "no kernel computes a plain matrix product");
  kernels.insert(kernels.begin(), *product);
  if (epilogue.activation != Activation::none)
    kernels.push_back(cuda::separate_kernel(activation_kernel(epilogue.activation), call, {sums}, {c}));
  if (epilogue.slope != Activation::none)
    kernels.push_back(cuda::separate_kernel(slope_kernel(epilogue.slope), call, {c, call.in.back()}, {c}));
  return in_order(std::move(kernels));
}

/// A large product of few terms is nearly all writes. The element-wise kernel for chains with such products, which
/// keeps their factors in shared memory, needs about the time of memory, the library's up to twice that.
std::optional<CudaKernel> prepare_few_terms(const CudaKernelCall& call, const Product& p) {
  constexpr int64_t kLargePerMultiprocessor = 31 << 10;
  const Epilogue e = epilogue_of(call.attrs);
  const bool plain = !e.bias && !e.keep_input && e.activation == Activation::none && e.slope == Activation::none &&
                     !p.accumulate && !p.transpose_a && p.batch == 1 && p.a_row == 0 && call.in[1].shape.size() == 2 &&
                     call.in[0].shape.back() == p.k && call.out[0].shape.back() == p.n;
  const auto fits = [](const TensorArg& arg) {
    return arg.dtype == DType::bf16 && reinterpret_cast<uintptr_t>(arg.data) % 16 == 0;
  };
  if (!plain || p.k > kMostFeatures || p.k % 8 != 0 || p.n % 32 != 0 || !built_for_hopper() ||
      p.m * p.n < kLargePerMultiprocessor * multiprocessors() || !std::ranges::all_of(call.in, fits) ||
      !fits(call.out[0]))
    return std::nullopt;
  const std::string product = p.transpose_b ? "l" : "m";
  CudaKernelCall chain = call;
  chain.attrs = {{"expression", e.residual ? "x0 " + product + "1 + =0" : product + "0 =0"}};
  std::vector<TensorArg> in = {call.in[0], call.in[1]};
  if (e.residual) in.insert(in.begin(), call.in.back());
  return cuda::separate_kernel(get_kernel("elementwise"), chain, in, {call.out[0]});
}

CudaKernel prepare_matmul(const CudaKernelCall& call) {
  const Product plain = product_of_matmul(call);
  if (plain.m == 0 || plain.n == 0 || plain.batch == 0) return [](CudaStream) {};
  check(plain.k > 0, "a matrix product needs k > 0");
  if (std::optional<CudaKernel> few_terms = prepare_few_terms(call, plain)) return *few_terms;
  Product p = plain;
  const Epilogue epilogue = epilogue_of(call.attrs);
  if (epilogue.bias) {
    p.bias = call.in[2].data;
    p.bias_type = call.in[2].dtype;
  }
  if (epilogue.residual) p.residual = call.in.back().data;
  p.activation = epilogue.activation;
  if (epilogue.keep_input) p.before = call.out[1].data;
  p.slope = epilogue.slope;
  if (p.slope != Activation::none) p.slope_at = call.in.back().data;
  if (std::optional<CudaKernel> whole = cuda::prepare_product(p, *call.scratch)) return *whole;
  return unfused(call, plain);
}

/// dw (+)= dy^T x, or x^T dy with attr kn; with the epilogue bias_grad also the sums of dy over the rows, in the same
/// product if a kernel supports it.
CudaKernel prepare_matmul_weight_grad(const CudaKernelCall& call) {
  const TensorArg &x = call.in[0], &dy = call.in[1], &dw = call.out[0];
  const bool kn = call.attrs.flag("kn");
  const TensorArg &left = kn ? x : dy, &right = kn ? dy : x;
  const int64_t skipped = call.attrs.integer("first_row", 0) * byte_size(left.dtype);
  Product p{.a = static_cast<const std::byte*>(left.data) + skipped, .b = right.data, .c = dw.data};
  set_types(p, left, right, dw);
  set_weight_grad_shape(call, left, right, p);
  if (p.m == 0 || p.n == 0) return [](CudaStream) {};
  check(p.k > 0, "a matrix product needs k > 0");
  p.tf32 = (call.tf32 || call.attrs.flag("tf32")) && p.operands == DType::f32;
  if (!epilogue_of(call.attrs).bias_grad) {
    const std::optional<CudaKernel> whole = cuda::prepare_product(p, *call.scratch);
    check(whole.has_value(), "no kernel computes a plain matrix product");
    return *whole;
  }
  const TensorArg& db = call.out[1];
  Product with_sums = p;
  (kn ? with_sums.b_sums : with_sums.a_sums) = db.data;
  with_sums.sums_accumulate = db.accumulate;
  if (db.dtype == dw.dtype && p.a_row == 0) {
    if (std::optional<CudaKernel> whole = cuda::prepare_product(with_sums, *call.scratch)) return *whole;
  }
  const std::optional<CudaKernel> product = cuda::prepare_product(p, *call.scratch);
  check(product.has_value(), "no kernel computes a plain matrix product");
  return in_order({*product, cuda::separate_kernel(bias_grad_kernel(), call, {dy}, {db})});
}

/// c = a b^T (+ bias, + residual) of factors in 8 bits with their scales.
CudaKernel prepare_matmul_fp8(const CudaKernelCall& call) {
  const TensorArg &a = call.in[0], &b = call.in[2], &c = call.out[0];
  Product p{.m = a.shape[0], .n = b.shape[0], .k = a.shape[1] * 4, .a = a.data, .b = b.data, .c = c.data};
  check(b.shape[1] * 4 == p.k, "matmul_fp8: this rank's factors have lines of one length");
  check(p.m * p.n == c.size(), "matmul_fp8: this rank's output does not have the product's size");
  p.result = c.dtype;
  p.a_scales = call.in[1].as<float>();
  p.b_scales = call.in[3].as<float>();
  p.a_squares = call.attrs.flag("a_squares");
  p.b_squares = call.attrs.flag("b_squares");
  p.tensor_scales = call.attrs.flag("tensor");
  p.a_e5m2 = call.attrs.flag("a_e5m2");
  p.b_e5m2 = call.attrs.flag("b_e5m2");
  p.transpose_b = true;
  p.accumulate = c.accumulate;
  const Epilogue epilogue = epilogue_of(call.attrs);
  const bool bias = epilogue.bias;
  if (epilogue.residual) p.residual = call.in.back().data;
  if (bias) {
    p.bias = call.in[4].data;
    p.bias_type = call.in[4].dtype;
    if (std::optional<CudaKernel> whole = cuda::prepare_product(p, *call.scratch)) return *whole;
    p.bias = nullptr;
  }
  const std::optional<CudaKernel> product = cuda::prepare_product(p, *call.scratch);
  if (!product)
    throw EnvError(
        "precision: fp8 needs a GPU of compute capability 9.0 (H100, H200) and cuBLASLt 12.9 or later; set "
        "precision: bf16");
  if (!bias) return *product;
  TensorArg sums = c;
  sums.accumulate = false;  // the product has added itself
  return in_order({*product, cuda::separate_kernel(bias_kernel(), call, {sums, call.in[4]}, {sums})});
}

}  // namespace

extern const CudaKernels matmul_cuda = {
    {"matmul", prepare_matmul, kTakesF16},        {"matmul_weight_grad", prepare_matmul_weight_grad, kTakesF16},
    {"matmul_fp8", prepare_matmul_fp8},           {"skinny_grads", prepare_skinny_grads},
    {"skinny_products", prepare_skinny_products}, {"skinny_weight_grads", prepare_skinny_weight_grads}};

}  // namespace trainctl
