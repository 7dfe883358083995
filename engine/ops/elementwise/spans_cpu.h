// The element-wise ops over n contiguous elements. An op's stand-alone kernel runs its span over the whole tensor, the
// `elementwise` kernel runs it over blocks; both give the same bits. Each is defined in its op's folder. An output may
// overwrite an input.
#pragma once

#include <cstdint>

#include "engine/ops/batch_index.h"
#include "engine/ops/cpu/strided_cpu.h"
#include "engine/ops/kernel.h"
#include "engine/ops/unary/unary.h"

namespace trainctl::cpu {

using Span1 = void (*)(const float* x, float* y, int64_t n);
using Span2 = void (*)(const float* a, const float* b, float* y, int64_t n);

void relu_span(const float* x, float* y, int64_t n);
void sigmoid_span(const float* x, float* y, int64_t n);
void tanh_span(const float* x, float* y, int64_t n);
void gelu_span(const float* x, float* y, int64_t n);
void gelu_tanh_span(const float* x, float* y, int64_t n);

void add_span(const float* a, const float* b, float* y, int64_t n);
void sub_span(const float* a, const float* b, float* y, int64_t n);
void mul_span(const float* a, const float* b, float* y, int64_t n);
void div_span(const float* a, const float* b, float* y, int64_t n);
void relu_grad_span(const float* dy, const float* y, float* dx, int64_t n);
void sigmoid_grad_span(const float* dy, const float* y, float* dx, int64_t n);
void tanh_grad_span(const float* dy, const float* y, float* dx, int64_t n);
void gelu_grad_span(const float* dy, const float* x, float* dx, int64_t n);
void gelu_tanh_grad_span(const float* dy, const float* x, float* dx, int64_t n);

void unary_span(Unary function, const float* x, float* y, int64_t n, UnaryParameters p);
/// `at`: x, or y if kUnary says of_result.
void unary_grad_span(Unary function, const float* dy, const float* at, float* dx, int64_t n, UnaryParameters p);
void where_span(const float* condition, const float* a, const float* b, float* y, int64_t n);
/// y = value where mask is not 0, or where it is 0 if `invert`; x elsewhere.
void masked_fill_span(const float* x, const float* mask, float* y, int64_t n, float value, bool invert);

/// Dropout of a tensor that may be a slice of a larger one.
class Dropout {
 public:
  /// `out` has the slice's position in the micro-batch; seed, scalars and the micro-batch are the call's.
  Dropout(const KernelCall& call, const TensorArg& out, double p, int64_t key, const BatchPlace& batch);
  /// Elements [first, first + n) of the slice.
  void run(int64_t first, const float* x, float* y, int64_t n) const;

 private:
  const StepScalars* scalars_;
  BatchIndex batch_;
  uint64_t key_;
  float p_, scale_;
  int64_t start_ = 0;  ///< index of the slice's first element in the whole micro-batch
  int64_t row_ = 1;    ///< elements that are contiguous in both
  Loops<1> rows_;      ///< over the slice's rows, with strides in the whole
};

}  // namespace trainctl::cpu
