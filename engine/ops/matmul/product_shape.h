// The product described by a call of matmul or matmul_weight_grad: sizes, transposes and steps, the same on every
// device. Each device has its own `Product` (product_cpu.h, product_cuda.h).
#pragma once

#include "engine/base/error.h"
#include "engine/ops/kernel.h"

namespace trainctl {

/// Product of all dims but the last `keep`.
inline int64_t leading_size(const Shape& shape, size_t keep) {
  int64_t n = 1;
  for (size_t d = 0; d + keep < shape.size(); ++d) n *= shape[d];
  return n;
}

template <class Product>
void set_matmul_shape(const KernelCall& call, Product& p) {
  const TensorArg &a = call.in[0], &b = call.in[1], &c = call.out[0];
  const auto dim = [](const TensorArg& t, size_t from_last) { return t.shape[t.shape.size() - 1 - from_last]; };
  p.transpose_a = call.attrs.flag("transpose_a");
  p.transpose_b = call.attrs.flag("transpose_b");
  p.m = dim(a, p.transpose_a ? 0 : 1);
  p.k = dim(a, p.transpose_a ? 1 : 0);
  p.n = dim(b, p.transpose_b ? 1 : 0);
  check(dim(b, p.transpose_b ? 0 : 1) == p.k, "matmul: this rank's parts disagree in the contracted dim");
  p.batch = leading_size(a.shape, 2);
  if (b.shape.size() == 2 && !p.transpose_a) {  // one tall product
    p.m *= p.batch;
    p.batch = 1;
  }
  p.a_step = p.m * p.k;
  p.b_step = b.shape.size() == 2 ? 0 : p.k * p.n;
  p.c_step = p.m * p.n;
  check(p.batch * p.m * p.n == c.size(), "matmul: this rank's output does not have the product's size");
  p.accumulate = c.accumulate;
}

/// `left` and `right`: the operands of dW, [rows, m] and [rows, n]. With attr first_row the output is a range of
/// dW's rows starting there: the product uses only those columns of `left`, and the caller sets p.a to the first of
/// them.
template <class Product>
void set_weight_grad_shape(const KernelCall& call, const TensorArg& left, const TensorArg& right, Product& p) {
  p.transpose_a = true;
  p.m = left.shape.back();
  if (call.attrs.has("first_row")) {
    p.a_row = p.m;
    p.m = call.out[0].shape[0];
    check(call.attrs.integer("first_row") + p.m <= p.a_row, "matmul_weight_grad: first_row is beyond dW's rows");
  }
  p.n = right.shape.back();
  p.k = leading_size(left.shape, 1);
  check(leading_size(right.shape, 1) == p.k, "matmul_weight_grad: this rank's parts disagree in the contracted dims");
  p.accumulate = call.out[0].accumulate;
  if (epilogue_of(call.attrs).descend) p.descend = &call.scalars->learning_rate;
}

}  // namespace trainctl
