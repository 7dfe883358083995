// Graph -> Plan: the stage of each layer, the mesh axes that cut each of its factors, and the reasons. Everything
// else (layouts, redistributions, memory) follows from these choices.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/hybrid/hybrid_shards.h"
#include "engine/plan/layout.h"
#include "engine/plan/traffic/cost_model.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// Tells what determined the axes of a layer.
enum class Choice : uint8_t {
  user,           ///< parallel.strategies
  propagated,     ///< from a neighbour
  data_parallel,  ///< neither a strategy nor a neighbour decides
  stand_alone,    ///< one rank
  by_hand,        ///< hybrid_parallel: the user decides
};
std::string_view to_string(Choice choice);

/// Largest bucket of parameters whose gradients one collective sums, if the job says nothing.
inline constexpr int64_t kBucketBytes = 32 << 20;

struct LayerPlan {
  int virtual_stage = 0;
  std::vector<Axes> factor_axes;  ///< one per factor of the layer
  Choice choice = Choice::data_parallel;
  std::string reason;            ///< "follows relu1, no redistribution", "strategy [[2, 1], [2, 1]] at job.yaml:31"
  std::string cut_limit_reason;  ///< why there are no more cuts: "7 does not divide 48"; usually empty
  std::string advice;  ///< sizes that would have allowed more cuts; the same text on all layers that it applies to
  bool recompute = false;
  bool offload = false;  ///< its tensors wait for the backward pass in the memory of the host
};

/// A node that is planned separately from its layer: it finishes the layer in another layout (units.h), or adds terms
/// in the layout or stage in which they are made (sums.h).
struct NodePlan {
  int virtual_stage = 0;
  std::vector<Layout> inputs, outputs;
};

/// A parameter or state: kept in one layout by every stage that uses it.
struct VariablePlan {
  TensorId tensor = -1;
  std::vector<int> stages;          ///< ascending; more than one if layers of several stages share it
  std::vector<int> virtual_stages;  ///< the same, by chunk
  Shape global_shape;               ///< the graph's shape; in hybrid_parallel the shape of all ranks' parts together
  Layout layout;                    ///< never partial
};

enum class TaskKind : uint8_t {
  forward,
  backward,
  weight_gradients,  ///< the part of a backward pass that no other rank waits for, if the schedule splits it off
};

/// One task in a stage's schedule.
struct Task {
  TaskKind kind = TaskKind::forward;
  int micro_batch = 0;
  int chunk = 0;
  friend bool operator==(const Task&, const Task&) = default;
};

/// The facts on which the order of a stage's tasks depends.
struct Pipeline {
  Schedule schedule = Schedule::one_f_one_b;
  int stages = 1, chunks = 1;
  int micro_batches = 1;
  bool with_backward = true;

  bool splits_backward() const { return with_backward && schedule == Schedule::zero_bubble; }
};

/// Tells how numbers are stored, rounded and updated: the facts of a job that its programs depend on besides layouts.
struct Numerics {
  Precision precision = Precision::fp32;
  std::optional<Fp8Spec> fp8;       ///< precision: fp8
  std::vector<bool> narrow_layers;  ///< by layer: its products take factors of 8 bits (narrow_layers.h)
  OptimizerSpec optimizer;
  OuterSpec outer;               ///< with Plan::replicas
  bool keeps_gradients = false;  ///< train.histograms reads gradients after the step
  bool reads_all_rows = false;   ///< parallel.full_batch of hybrid_parallel: each rank loads all rows of a micro-batch
};

/// The type of weights and activations as kernels read them.
constexpr DType compute_type(Precision precision) {
  return precision == Precision::bf16 ? DType::bf16 : precision == Precision::fp16 ? DType::f16 : DType::f32;
}

struct Plan {
  ParallelMode mode = ParallelMode::stand_alone;
  int ranks = 1;  ///< workers; the mesh is theirs
  /// parameter_server: the number of servers. Servers hold the weights that are updated; their ranks follow the ranks
  /// of the workers.
  int servers = 0;
  /// Asynchronous parameter servers: number of workers, each of which runs the program of the single rank of the mesh
  /// on its own batches and exchanges messages only with the servers. 0: the ranks run in lockstep.
  int own_workers = 0;
  /// parallel.local_steps: number of replicas. A replica is a group of `ranks` ranks that trains its own weights. The
  /// rest of the plan, and the programs compiled from it, describe the first replica. The ranks of replica i follow the
  /// ranks of replica i - 1.
  int replicas = 1;
  int64_t local_steps = 0;  ///< 0: there are no replicas
  /// parallel.rank_micro_batches: each rank runs whole micro-batches of its own, in order; empty: ranks of a stage
  /// share each micro-batch.
  std::vector<int> rank_micro_batches;
  int num_stages = 1;
  int chunks = 1;  ///< consecutive layers form a virtual stage; chunk c of stage s is virtual stage c * num_stages + s
  int micro_batches = 1;
  Schedule schedule = Schedule::one_f_one_b;
  Mesh mesh;  ///< mesh of one stage
  Numerics numerics;
  int optimizer_shard_level = 0;  ///< 0 … 3
  int64_t optimizer_shard_min_bytes = 0;
  /// optimizer_shard.within_host: the axes along which a stage's ranks are on one host. Shards are of these ranks
  /// only; the sums of the hosts are then summed over hosts. Null: shards are of all ranks that sum a gradient.
  std::optional<Axes> shard_axes;
  bool offloads_optimizer = false;      ///< its state is in the memory of the host (kHostOffset in compile/program.h)
  int64_t bucket_bytes = kBucketBytes;  ///< size limit of a bucket at levels 0 to 2
  DType gradient_type = DType::f32;     ///< type in which parameter gradients are summed over ranks: f32 or bf16
  /// Bytes, as f32, of each piece in which the step's last large gradient is made.
  int64_t gradient_piece_bytes = int64_t{64} << 20;
  int head_pieces = 1;                          ///< number of row pieces in which the prediction is made and used
  std::vector<LayerPlan> layers;                ///< one per layer of the graph
  std::map<TensorId, NodePlan> separate_nodes;  ///< nodes that are planned separately from their layer, by first output
  /// Layouts in which tensors of recompute layers are kept from the forward to the backward pass: results of
  /// collectives.
  std::map<TensorId, std::vector<Layout>> kept;
  /// Parameters of which asynchronous workers have only the rows of one batch (engine/planning/served_tables.h).
  std::vector<TensorId> tables;
  /// The way in which ranks that share rows exchange keys and values (ops/attention/key_exchange.h); never automatic.
  ContextMethod context_method = ContextMethod::gather;
  std::vector<VariablePlan> variables;  ///< parameters, then states, in graph order
  HybridShards hybrid_shards;           ///< in hybrid_parallel
  std::vector<std::string> notes;       ///< for the user ("batch 30 is cut 2 of 4 ways …")

  /// Number of processes that programs are compiled for: asynchronous workers count as one.
  int processes() const { return ranks + servers; }
  bool is_asynchronous() const { return own_workers > 0; }
  bool has_replicas() const { return local_steps > 0; }
  bool hybrid() const { return mode == ParallelMode::hybrid_parallel; }
  bool divides_micro_batches() const { return !rank_micro_batches.empty(); }
  /// True if each tensor of a micro-batch exists on one rank of a stage only. Then only gradients, the loss and metrics
  /// are summed over the ranks of a stage.
  bool has_local_tensors() const { return hybrid() || divides_micro_batches(); }
  int first_micro_batch(int rank_in_stage) const;
  DType compute_type() const { return trainctl::compute_type(numerics.precision); }
  /// Kernels read 16-bit copies of the f32 weights.
  bool copies_weights() const { return is_half(compute_type()); }
  const VariablePlan& variable(TensorId tensor) const;
  /// Returns null if the node is planned as a part of its layer.
  const NodePlan* planned_separately(const Node& node) const;
  int virtual_stage_of(const Node& node) const;
  /// Returns the stage whose ranks run the node.
  int stage_of(const Node& node) const { return virtual_stage_of(node) % num_stages; }
  int num_virtual_stages() const { return num_stages * chunks; }
  /// "stage 1", or with chunks "chunk 0 of stage 1".
  std::string stage_text(int virtual_stage) const;
  Pipeline pipeline(bool with_backward) const { return {schedule, num_stages, chunks, micro_batches, with_backward}; }
};

/// The numerics that the job asks for.
Numerics numerics_of(const Graph& graph, const JobSpec& spec);

/// Chooses everything that the job leaves open; the result is legal by construction. Throws SpecError if the job
/// asks for the impossible (cuts that do not divide, stages that run backwards, too few ranks). Deterministic:
/// every rank computes the same plan without communication.
Plan make_plan(const Graph& graph, const JobSpec& spec, const CostModel& cost);

/// The layout in which a node takes its input i and leaves its output i, from the plan's axes per factor or, for a node
/// planned separately from its layer, as planned. An output
/// is partial over the axes of the factors that only the node's inputs have (so a weight's gradient is partial over
/// the axes that cut the batch). hybrid_parallel: the graph's shapes are one rank's parts, including parameters, so
/// all inputs and outputs are "replicated" here. The loss and metrics are partial over all axes, a parameter's gradient
/// over those that do not cut the parameter: the job's loss is the mean over ranks.
Layout input_layout(const Graph& graph, const Plan& plan, const Node& node, int i);
Layout output_layout(const Graph& graph, const Plan& plan, const Node& node, int i);

/// The axes that cut dims of input 0 that the node sums over inside (Rule::inner), major first: its ranks exchange
/// statistics.
Axes inner_axes(const Graph& graph, const Plan& plan, const Node& node);
/// True if both nodes need the same statistics in the same layout, as a loss and its gradient do.
bool share_statistics(const Node& first, const Node& second);

/// Used during planning, when there are axes but no Plan yet: rule_layout returns the layout of a tensor (never
/// partial), and partial_axes the axes over which output `output` of a node is partial. Where tokens are sent to the
/// ranks of their experts, the experts have axes that cut tokens too: such an axis cuts the experts of a tensor that
/// has both, and leaves no partial sum of one that has either.
Layout rule_layout(const TensorRule& rule, const std::vector<Factor>& factors, const std::vector<Axes>& factor_axes);
Axes partial_axes(const Rule& rule, int output, const std::vector<Axes>& factor_axes);

/// For a layer as a whole: the layouts of the inputs that a strategy addresses (x, weight, bias), the same as cuts
/// per dim, and the layouts of its outputs.
std::vector<Layout> layer_inputs(const Graph& graph, const Plan& plan, LayerId layer);
std::vector<Ints> layer_cuts(const Graph& graph, const Plan& plan, LayerId layer);
std::vector<Layout> layer_outputs(const Graph& graph, const Plan& plan, LayerId layer);

/// One line per layer (stage, cuts, layouts in and out, the reason), then one per variable: `trainctl show plan`.
std::string to_string(const Plan& plan, const Graph& graph);

/// The tasks of a stage in order. F forward, B backward, W weight gradients; F0.1 is micro-batch 0 in chunk 1.
///
///   gpipe, 4 micro-batches:       F0 F1 F2 F3 B0 B1 B2 B3            on every stage
///   1f1b, stage 0 of 2:           F0 F1 B0 F2 B1 F3 B2 B3            stage 1 of 2: F0 B0 F1 B1 F2 B2 F3 B3
///   interleaved_1f1b, 2 chunks:   F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 …    stage 0 of 2: chunks take turns
///   zero_bubble, stage 0 of 2:    F0 F1 B0 W0 F2 B1 W1 …             stage 1 of 2: F0 B0 F1 B1 W0 F2 B2 W1 …
///
/// Forward-only jobs (Pipeline without backward) have only the forward tasks, in the same order.
std::vector<Task> stage_tasks(const Pipeline& pipeline, int stage);

/// "F0", or with chunks "F0.1".
std::string to_string(const Task& task, int chunks);

/// Times of tasks in a simple model: communication takes no time, a forward task takes one unit, and a backward task
/// two. If the schedule splits weight gradients off, they take one of the two units. All chunks take the same time.
struct TaskTimes {
  std::vector<std::vector<int>> starts, ends;  ///< by stage and task
  int length = 0;

  /// The share of all stages' time in which they have no task.
  double bubble() const;
};
TaskTimes task_times(const Pipeline& pipeline);

}  // namespace trainctl
