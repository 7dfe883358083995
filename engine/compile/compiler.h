// The state that the passes of compile() share: one rank's program before its buffers are placed. Operand offsets
// are bytes from the start of their buffer; place_buffers makes them arena offsets.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/compile/lower/buckets.h"
#include "engine/compile/program.h"
#include "engine/ops/optimizer_def.h"

namespace trainctl {

using BufferId = int;

enum class BufferKind : uint8_t {
  weights,  ///< weights in the form that kernels read
  state,
  master,  ///< bf16 and fp16: the f32 weights
  gradients,
  optimizer,
  scalars,     ///< live as long as the program
  activation,  ///< tensors of the forward and backward pass
  scratch,     ///< gathered weights, packing, per-micro-batch gradients
};
constexpr bool is_persistent(BufferKind kind) { return kind < BufferKind::activation; }

struct VirtualBuffer {
  BufferKind kind = BufferKind::activation;
  int64_t bytes = 0;
  int64_t offset = -1;        ///< in the arena; -1: not placed yet
  bool is_offloaded = false;  ///< in the memory of the host
  int lasts_until = -1;  ///< index of an instruction before which nothing else uses its memory (offload_activations)
};

/// A tensor, or a part of one, in a buffer. `operand.tensor` is the name under which it was written, even where a
/// reshape reads it under another name.
struct View {
  BufferId buffer = -1;
  Operand operand;
};

struct VirtualInstruction {
  Instruction code;
  std::vector<BufferId> inputs, outputs;  ///< in the order of code.inputs, code.outputs
  /// Number of this rank's earlier sends to the peer that the peer has certainly received. For a recv: received before
  /// the peer sends this message. For a send: received before the current task starts, because the schedule orders the
  /// tasks of all stages.
  size_t acknowledged = 0;
};

inline bool is_kernel(const VirtualInstruction& v, const KernelDef& kernel) {
  return v.code.opcode == Opcode::kernel && v.code.op == kernel.name;
}
/// Returns the role that `v` could have in the epilogue of the kernel before it.
inline EpilogueRole epilogue_role(const VirtualInstruction& v) {
  const KernelDef* kernel = kernel_of(v.code);
  return kernel != nullptr && kernel->as_epilogue != nullptr ? kernel->as_epilogue(v.code.attrs) : EpilogueRole{};
}
/// True if `v` sums parameter gradients over ranks.
inline bool reduces(const VirtualInstruction& v) {
  return v.code.opcode == Opcode::collective && v.code.purpose == Purpose::gradient;
}

/// True if `v` sends parameter gradients from a worker to a server.
inline bool pushes(const VirtualInstruction& v) {
  return v.code.opcode == Opcode::send && v.code.purpose == Purpose::gradient;
}

/// A bucket on this rank: its plan, and its persistent buffers.
struct RankBucket {
  const BucketPlan* plan = nullptr;
  int level = 0;                     ///< Bucket::level
  BufferId weights = -1;             ///< f32; -1: bf16 and never updated
  BufferId compute = -1;             ///< bf16, or f16: the copy that kernels read
  DType compute_type = DType::bf16;  ///< type of `compute`
  bool rounded_by_gathers = false;   ///< level 3 in bf16: each gather rounds the f32 shard, so no copy is kept
  BufferId gradients = -1;           ///< the range that the update reads
  BufferId sums = -1;  ///< f32: where contributions of several micro-batches add up first (accumulates_separately)
  std::vector<BufferId> optimizer;
  std::vector<BufferId> scales;  ///< optimizer.state_type: int8: one per entry of `optimizer`, which has codes
  BufferId other_states = -1;    ///< ParameterSums::states of all its parameters, which each rank has as a whole
  BufferId average = -1;         ///< one of `optimizer` if the update computes it
  BufferId outer_momentum = -1;
  /// Levels 1 and 2: weights are gathered before their first use in the next step, not after their update.
  bool gathered_in_forward = false;

  bool computes_average() const { return std::find(optimizer.begin(), optimizer.end(), average) != optimizer.end(); }
  BufferId read() const { return compute >= 0 ? compute : weights; }
  DType read_type() const { return compute >= 0 ? compute_type : DType::f32; }
  DType gathered_type() const { return rounded_by_gathers ? compute_type : read_type(); }
  /// Returns the same as Bucket::weights_are_cut, which can be called only when buffers have offsets.
  bool weights_are_cut() const { return level == 3 || (level > 0 && compute >= 0); }
};

struct Compiler {
  Compiler(const Graph& graph, const Plan& plan, const CostModel& cost, int rank, const EvaluationOf* of = nullptr);
  Compiler(const Compiler&) = delete;
  Compiler& operator=(const Compiler&) = delete;

  const Graph& graph;
  const Graph& trained;             ///< its updates determine the layout of variables: `graph`, unless in an evaluation
  const bool keeps_training_state;  ///< there is room for gradients and the optimizer, used or not
  const EvaluationOf::Only only;    ///< EvaluationOf
  const Plan& plan;
  const CostModel& cost;
  std::vector<Optimizer> optimizers;  ///< for parameters without a group, then for each group
  std::vector<Optimizer> companions;  ///< the same for OptimizerDef::companion; empty: there is none
  const int rank;
  const int server;                ///< index among the servers; -1: a worker
  const int stage, rank_in_stage;  ///< a server is in no stage: -1

  Program program;  ///< groups, variables and buckets as passes fill them in; instructions at the end
  std::vector<BucketPlan> bucket_plans;  ///< buckets of all stages; if empty, lay_out_variables plans them
  std::vector<RankBucket> buckets;       ///< one per entry of program.buckets
  BufferId scalars = -1, loss = -1;      ///< loss: also the metrics
  BufferId norms = -1;                   ///< the last gradient norms (train.on_spike)
  std::vector<std::pair<BufferId, int64_t>>
      other_states;                                 ///< one per entry of program.other_states: bytes in the buffer
  std::vector<BufferId> states;                     ///< one per entry of program.variables; -1: a parameter
  std::vector<int64_t> state_offsets;               ///< one per entry of program.variables: bytes in that buffer
  std::vector<const VariablePlan*> variable_plans;  ///< one per entry of program.variables
  std::vector<Format> formats;                      ///< by tensor: in which its node makes it, and stages send it
  std::vector<std::optional<ChannelsLast>> forms;   ///< by node: how it takes images that are channels last; empty: not
  std::vector<int> variables;  ///< by tensor: its index in program.variables; -1: not on this stage
  std::vector<VirtualBuffer> buffers;
  std::vector<VirtualInstruction> code;

  bool is_server() const { return server >= 0; }
  /// An asynchronous server takes no part in the loss, which is each worker's own.
  bool has_loss() const { return graph.has_loss() && !(is_server() && plan.is_asynchronous()); }
  /// True if this rank holds the bucket or a part of it.
  bool has(const BucketPlan& bucket) const {
    return is_server() ? bucket.part_of_server(server) >= 0 : bucket.in_stage(stage);
  }
  bool trains() const { return graph.trains(); }
  const Optimizer& optimizer_of(const BucketPlan& bucket) const {
    return (bucket.uses_companion ? companions : optimizers).at(static_cast<size_t>(bucket.group + 1));
  }
  /// True if the bucket's update is only weight -= learning_rate * gradient.
  bool is_plain_step(const BucketPlan& bucket) const {
    return optimizer_of(bucket).is_plain_step() && !plan.numerics.optimizer.average && !plan.has_replicas() &&
           !plan.numerics.optimizer.needs_norm() && plan.numerics.optimizer.clip_value == 0 &&
           plan.numerics.optimizer.learning_rate_scale(bucket.group) == 1;
  }
  /// True if the step reports whether its update was skipped, after the metrics.
  bool reports_skips() const { return graph.trains() && plan.numerics.optimizer.skips_not_finite; }
  /// True if the step also reports whether its gradients were not finite, because a spike is skipped like them.
  bool reports_overflows() const {
    const OptimizerSpec& optimizer = plan.numerics.optimizer;
    return graph.trains() && optimizer.scales_loss && optimizer.on_spike;
  }
  /// The loss and the metrics, which are adjacent.
  int64_t num_reported() const { return 1 + static_cast<int64_t>(graph.metrics.size()); }
  int global_rank(int of_stage, int of_rank_in_stage) const { return of_stage * plan.mesh.size() + of_rank_in_stage; }
  int group_of(const std::vector<int>& ranks);  ///< index into program.groups
  std::vector<int> all_ranks() const;           ///< workers, then servers
  BufferId new_buffer(BufferKind kind, int64_t bytes);
  void emit(Instruction instruction, std::vector<View> inputs, std::vector<View> outputs);

  /// This rank's part of a tensor. In hybrid_parallel the graph's shape already is one rank's part.
  Shape local_shape(TensorId tensor, const Layout& layout) const;
  Operand operand(TensorId tensor, const Layout& layout, Format format = Format::declared) const;
  /// Index into program.variables; -1: not on this stage.
  int variable_index(TensorId tensor) const { return variables[static_cast<size_t>(tensor)]; }
  /// Marks `part` as this rank's part of a range of `whole` elements, starting at element `first`.
  static View own_part(View part, OwnPart kind, int64_t whole, int64_t first);
  /// A one-dimensional view of `elements` elements of the buffer, starting at element `first_element`.
  View flat(BufferId buffer, int64_t first_element, int64_t elements, std::string name, DType dtype = DType::f32) const;
};

}  // namespace trainctl
