// For each kernel a call that is worth timing: what `trainctl bench op NAME` runs where no shapes are given, and
// the rule that given ones must follow.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/ops/op_def.h"

namespace trainctl {

enum class Fill {
  values,      ///< random, of --dtype
  statistics,  ///< random and positive, f32 whatever --dtype: means, variances, gradients of parameters
  indices,     ///< i32: ids or labels
};

struct ExampleInput {
  Shape shape;
  Fill fill = Fill::values;
};

struct OpExample {
  const char* name;
  const char* what;  ///< "C[m,n] = A[m,k] B[k,n]"
  std::vector<ExampleInput> inputs;
  Attrs attrs = {};     ///< with which it runs
  Attrs optional = {};  ///< others that it takes, with values of their type
  /// Of kernels that are no ops of a graph: their outputs. Throws ShapeError.
  std::vector<TensorInfo> (*outputs)(std::span<const TensorInfo> inputs, const Attrs& attrs, DType dtype) = nullptr;
  /// Indices lie in [0, below).
  int64_t (*below)(std::span<const TensorInfo> inputs, const Attrs& attrs) = nullptr;
  /// Of ops of backward passes, whose infer trusts what their forward op has checked. Throws ShapeError.
  void (*expect)(std::span<const TensorInfo> inputs) = nullptr;
};

/// Ops of graphs first, then kernels that only compiled programs use.
std::span<const OpExample> op_examples();
const OpExample* find_op_example(std::string_view name);

}  // namespace trainctl
