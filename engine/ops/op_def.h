// All that the planner and the compiler know of one op. An op is one folder: softmax/softmax.cpp
// (this), softmax_cpu.cpp, softmax_cuda.cu (its kernels), and one line in all_ops.cpp.
#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/attrs.h"
#include "engine/graph/dtype.h"
#include "engine/graph/rule.h"
#include "engine/graph/shape.h"

namespace trainctl {

class GradBuilder;

struct TensorInfo {
  Shape shape;
  DType dtype = DType::f32;
};

/// Work of one execution on the shapes given (local or global alike).
struct Cost {
  double flops = 0;
  double bytes = 0;  ///< read and written, each once
};

struct OpDef {
  const char* name;

  /// Output shapes and dtypes. Throws ShapeError where the inputs do not fit; the message names the
  /// shapes and what was expected.
  std::vector<TensorInfo> (*infer)(std::span<const TensorInfo> inputs, const Attrs& attrs);

  /// The sharding rule for these inputs, in letters (see graph/rule.h). Null for ops that stand in
  /// backward passes alone: their nodes get the rule from what they are the gradient of.
  RuleText (*rule)(std::span<const TensorInfo> inputs, const Attrs& attrs);

  Cost (*cost)(std::span<const TensorInfo> inputs, std::span<const TensorInfo> outputs, const Attrs& attrs);

  /// Emits the backward nodes of one forward node. Null: no gradient flows through (its inputs are
  /// integers, or it is itself a backward op).
  void (*backward)(GradBuilder& g) = nullptr;

  /// Bit i: the kernel can add into output i instead of overwriting it (KernelCall::out[i].accumulate).
  unsigned can_accumulate = 0;
  /// Output 0 is a parameter's gradient, and with the attr `descend` the kernel takes the step of plain SGD
  /// instead: out -= learning_rate * result. The compiler's fuse_update sets it.
  bool can_descend = false;
  /// Bit i: input i is updated in place (running statistics). Such a node runs once a micro-batch,
  /// in the forward pass, and never again in a recompute.
  unsigned updates_input = 0;
  /// Output 0 may share the memory of input 0.
  bool in_place = false;
  /// A matrix product: under precision tf32 its instructions get the attr `tf32`.
  bool is_product = false;
  /// A collective as a layer (hybrid_parallel): compiled to a collective instruction, has no kernel.
  bool collective = false;
};

/// What an op's infer throws; model/ turns it into a SpecError at the layer's position.
struct ShapeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Every op, in the order of the list in all_ops.cpp.
std::span<const OpDef* const> all_ops();
/// Null when there is none of that name.
const OpDef* find_op(std::string_view name);
/// The same, but the name must exist.
const OpDef& get_op(std::string_view name);

}  // namespace trainctl
