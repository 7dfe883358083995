// All that the planner and the compiler know of one op of the graph. Ops live in folders, a family each:
// softmax/softmax.cpp (definitions), softmax_cpu.cpp and softmax_cuda.cu (kernels), softmax_cases.cpp (what tests know
// of them), and one line in all_ops.def (docs/ops.md).
#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/rule.h"
#include "engine/ops/kernel_def.h"

namespace trainctl {

class GradBuilder;

struct OpDef {
  const char* name;

  /// Output shapes and dtypes. Throws ShapeError where the inputs do not fit; the message names the
  /// shapes and what was expected.
  std::vector<TensorInfo> (*infer)(Infos inputs, const Attrs& attrs);

  /// The sharding rule for these inputs, in letters (see graph/rule.h). Null for ops that stand in
  /// backward passes alone: their nodes get the rule from what they are the gradient of.
  RuleText (*rule)(Infos inputs, const Attrs& attrs);

  /// Emits the backward nodes of one forward node. Null: no gradient flows through (its inputs are
  /// integers, or it is itself a backward op).
  void (*backward)(GradBuilder& g) = nullptr;

  /// Of the same name. A node that updates one of its inputs (running statistics) runs once a micro-batch, in the
  /// forward pass, and never again in a recompute.
  KernelDef kernel;

  /// The output is input 0 under another shape: compiled to no instruction.
  bool is_view = false;
  /// A collective as a layer (hybrid_parallel): compiled to a collective instruction; its kernel has a cost alone.
  bool collective = false;
};

/// What an op's infer throws; model/ turns it into a SpecError at the layer's position.
struct ShapeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Every op, by family in the order of all_ops.def.
std::span<const OpDef* const> all_ops();
/// Null when there is none of that name.
const OpDef* find_op(std::string_view name);
/// The same, but the name must exist.
const OpDef& get_op(std::string_view name);

}  // namespace trainctl
