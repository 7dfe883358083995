// Everything that the planner and the compiler know about one op of the graph. Each family of ops has a folder and one
// line in all_ops.def (docs/ops.md):
//   softmax/softmax.cpp         definitions
//   softmax/softmax_cpu.cpp     kernels of CPUs
//   softmax/softmax_cuda.cu     kernels of NVIDIA GPUs
//   softmax/softmax_cases.cpp   the cases that tests run
#pragma once

#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/rule.h"
#include "engine/ops/kernel_def.h"

namespace trainctl {

class GradBuilder;

/// The collective that an op performs as a layer (hybrid_parallel).
enum class LayerCollective : uint8_t { all_reduce, broadcast, reduce, all_gather, reduce_scatter, all_to_all };

/// Execution of a node in an evaluation.
enum class InEvaluation : uint8_t {
  runs,         ///< it runs as in training
  passes_on,    ///< it does not run: readers of its output read its input 0 (dropout)
  reads_state,  ///< it does not run: its inputs are (new statistics.., kept ones..); readers of new ones read the kept
};

/// The replacement of a node in a graph that generates text (model/generation.h).
enum class InGeneration : uint8_t {
  runs,          ///< the node itself: it computes each position independently, or it is refused
  reads_starts,  ///< the node, which reads the first position of each text in place of the documents
  reads_caches   ///< cached_attention
};

/// Describes how an op runs if an inner letter of input 0 in its rule is cut. `stats` computes statistics of a rank's
/// part, a few numbers per row; they are gathered from the ranks that share the rows; `apply` computes the rank's part
/// of the outputs. Nodes of a layer with the same `stats` of the same inputs share them, and recomputation does not
/// repeat them.
///
/// Or, with `block`, the ranks exchange elements: `stats` puts together a block for each rank, with those that it
/// needs, and an all_to_all brings each its own.
struct InnerSum {
  const KernelDef* stats;                            ///< the op's inputs -> statistics of this part, f32
  Shape (*shape)(Infos inputs, const Attrs& attrs);  ///< shape of the statistics: dims of the rows, then a few numbers
  const KernelDef* apply;  ///< the op's inputs, statistics of all parts [parts, ..] -> the op's outputs
  size_t reads = 0;        ///< how many of the inputs `stats` reads, the first ones; 0: all
  /// In place of `shape`: that of each of the `parts` blocks, which have the type of input 0. In `inputs` the dims of
  /// inner letters are whole. `stats` writes, and `apply` reads, [parts, ..].
  Shape (*block)(Infos inputs, const Attrs& attrs, int64_t parts) = nullptr;
};

struct OpDef {
  const char* name;

  /// Output shapes and dtypes. Throws ShapeError if the inputs do not fit; the message names the shapes and what
  /// was expected.
  std::vector<TensorInfo> (*infer)(Infos inputs, const Attrs& attrs);

  /// The sharding rule for these inputs, in letters (see graph/rule.h). Null for ops that occur only in backward
  /// passes: their nodes get the rule from the tensors that they are the gradients of.
  RuleText (*rule)(Infos inputs, const Attrs& attrs);

  /// Emits the backward nodes of one forward node. Null: no gradient flows through (its inputs are integers, or it
  /// is itself a backward op).
  void (*backward)(GradBuilder& g) = nullptr;

  /// Bit i: no gradient flows to input i, because the outputs do not change with it gradually (a condition).
  unsigned no_gradient = 0;

  /// Has the op's name. A node that updates one of its inputs (running statistics) runs once per micro-batch, in
  /// the forward pass, and is never recomputed.
  KernelDef kernel;

  /// The output is input 0 with another shape: no instruction is compiled.
  bool is_view = false;
  /// Attrs name places in the op's operands (slice, pad). In hybrid_parallel attrs and shapes are one rank's, so the
  /// kernel's operands count as whole tensors there.
  bool attrs_name_places = false;
  /// The output is larger than the inputs and quickly made of them: it is not kept for the backward pass, where the
  /// node runs again.
  bool runs_again = false;
  /// A collective as a layer (hybrid_parallel): compiled to a collective instruction; its kernel only has a cost.
  std::optional<LayerCollective> collective = {};
  /// Set if the rule of the op, or that of its forward op, has inner letters.
  std::optional<InnerSum> inner_sum = {};
  InEvaluation in_evaluation = InEvaluation::runs;
  /// An attr that only training has: an evaluation runs the node without it (dropout inside of the op). A layer of the
  /// op's name has it as a field, which a reference model leaves out. Null: none.
  const char* training_attr = nullptr;
  InGeneration in_generation = InGeneration::runs;
};

/// Thrown by an op's infer or a layer's emit; model/ turns it into a SpecError at the layer's position, or at that of
/// one of the layer's fields.
struct ShapeError : std::runtime_error {
  explicit ShapeError(const std::string& message, std::string of_field = "")
      : std::runtime_error(message), field(std::move(of_field)) {}
  std::string field;
};

/// Every op, by family in the order of all_ops.def.
std::span<const OpDef* const> all_ops();
/// Null if there is none of that name.
const OpDef* find_op(std::string_view name);
/// The same, but the name must exist.
const OpDef& get_op(std::string_view name);

}  // namespace trainctl
