// The state of lower_stage, which turns the tasks of one rank into instructions, and the steps that share this state.
//
// A task is a forward or a backward pass of a micro-batch through a chunk of layers. Its nodes are lowered in their
// order (lower_node), and each brings its inputs into the layouts that the plan demands of them:
//
//   bring          a tensor in a layout: loaded, received from another stage, redistributed or recomputed if necessary
//   send_outputs   the messages to other stages, as soon as their tensors are complete
//   contribute     gradients of parameters, added to their buckets; a complete bucket is reduced
//   forget         at the end of a task, values that no later task reads
//   finish_step    after the last task: remaining reductions, updates of the weights, loss and metrics
//
// The state therefore says which buffer has which (tensor, layout) of a micro-batch, which messages are still to be
// received, and which gradients are complete. Every instruction is appended to Compiler::code by emit().
#pragma once

#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "engine/compile/compiler.h"
#include "engine/compile/lower/transfers.h"
#include "engine/plan/traffic/redistribution.h"

namespace trainctl {

/// Layouts are compared often, so each distinct one has a number.
using LayoutId = int;

/// A tensor of a micro-batch in one layout.
struct Located {
  LayoutId layout = -1;
  View view;
};

struct Way {
  std::vector<RedistributionStep> steps;
  double seconds = 0;
};

/// A range in which contributions to a bucket's gradients add up.
struct GradientRange {
  BufferId buffer = -1;
  std::vector<bool> written;  ///< by parameter
};

/// The state of this rank's part of a bucket's gradients.
struct GradientState {
  GradientRange of_step;                        ///< below level 2
  std::map<int, GradientRange> of_micro_batch;  ///< from level 2 on: those not yet reduced
  NodeId last_node = -1;                        ///< the last node of this stage that contributes; -1: none
  bool shard_written = false;                   ///< levels 2 and 3: an earlier micro-batch is in the shard
  bool reduced = false;
  size_t last_reduction = 0;  ///< index in Compiler::code of the last reduction so far
};

/// The result of a reduce_scatter, still to be added to the shard of earlier micro-batches.
struct ScatteredShard {
  View from, to;
  int micro_batch = -1;
  /// The bucket whose shard is complete after this addition and is then summed over hosts; -1: the shard is not.
  int summed_over_hosts = -1;
};

/// The messages that another stage sends to this one in a step, in its order, and how many of them have been received.
struct Inbox {
  struct Message {
    const Transfer* transfer = nullptr;
    int micro_batch = 0;
    size_t acknowledged = 0;  ///< messages in the other direction that the sender has received before it sends this
  };
  int from_stage = 0;
  std::vector<Message> messages;
  std::map<std::tuple<TensorId, int, int>, size_t> places;  ///< by tensor, micro-batch and receiving virtual stage
  std::map<std::tuple<TaskKind, int, int>, size_t> ends_of_tasks;  ///< one past the last message for the task, by chunk
  size_t received = 0;
};

/// The progress of another stage to which this one sends.
struct ReceiverProgress {
  int to_stage = 0;
  /// By kind, micro-batch and chunk of this stage's task: how many messages the other stage has received before the
  /// task starts, as the schedule orders the tasks of both.
  std::map<std::tuple<TaskKind, int, int>, size_t> received;
};

/// The tokens that ranks have sent to their experts in a forward pass (exchange_tokens.cpp).
struct SentTokens {
  int64_t rows_of_block = 0, pairs = 0;
  bool counted = false;  ///< only the rows that are used are sent
  double expected_share = 1;
  View rows, places;     ///< rows of this rank's tokens
  View counts;           ///< [ranks, ranks]: the rows that are used, if they are counted
  View ids, weights, x;  ///< received
  View dy;               ///< in the backward pass: received
};

struct Lowering {
  explicit Lowering(Compiler& compiler);

  Compiler& c;
  Task task;
  bool last_of_kind = false;  ///< no task of this kind and chunk comes after this one
  bool recomputing = false;

  std::vector<TaskKind> tasks_of_nodes;                          ///< by node: the task that runs it
  std::vector<std::vector<LayoutId>> node_inputs, node_outputs;  ///< layouts of this stage's nodes
  /// For data set tensors: the cuts common to all layouts that this stage needs. A rank loads a tensor once and
  /// slices it further locally.
  std::map<TensorId, LayoutId> load_layouts;
  Attrs row_order;  ///< for nodes whose results depend on positions (ops/row_order.h); empty: rows are in order of
                    ///< positions
  std::vector<int> row_dims;                              ///< with row_order, by tensor: the dim of its rows; -1: none
  std::vector<int> num_consumers;                         ///< by tensor, all stages
  std::vector<LayerId> first_readers;                     ///< by tensor: the layer of the first node that reads it
  std::vector<bool> printed;                              ///< by tensor
  std::vector<bool> narrow;                               ///< by layer: its products take factors of 8 bits
  std::vector<std::vector<std::vector<Located>>> values;  ///< by slot and tensor; empty: none yet

  /// By slot: statistics gathered for inner sums, and the first node that needed them. Kept from the forward to
  /// the backward pass even where a layer is recomputed.
  std::vector<std::vector<std::pair<NodeId, View>>> statistics;

  std::set<NodeId> begun_exchanges;  ///< nodes of experts that have begun in this task and are not finished
  /// Key: slot, and the output of the experts that only their gradient reads, which identifies the layer.
  std::map<std::pair<size_t, TensorId>, SentTokens> sent_tokens;

  std::vector<Transfer> transfers;                    ///< transfers between all stages
  std::multimap<TensorId, const Transfer*> outgoing;  ///< transfers from all chunks
  std::vector<Inbox> inboxes;
  std::vector<ReceiverProgress> receiver_progress;

  std::vector<GradientState> gradients;    ///< by bucket
  std::multimap<NodeId, int> finished_by;  ///< buckets by GradientState::last_node, in their order
  std::vector<ScatteredShard> scattered;
  std::vector<BufferId> gathered;  ///< by bucket, level 3: the whole weights, in this task
  std::set<int> used;              ///< buckets whose weights a task has used
  LayerId first_layer = -1;        ///< this stage's first layer with sharded weights; -1: none so far
  /// The destination of a gradient of the graph: (bucket, parameter in it).
  std::multimap<TensorId, std::pair<int, int>> destinations;

  const Layout& layout(LayoutId id) const { return *layouts_[id]; }
  LayoutId id(const Layout& layout);
  const Way& way(TensorId tensor, LayoutId from, LayoutId to);
  int virtual_stage() const { return task.chunk * c.plan.num_stages + c.stage; }
  /// The index of the current task's (chunk, micro-batch) pair. Values of a micro-batch are kept separately per chunk.
  size_t slot() const { return static_cast<size_t>(task.chunk * c.plan.micro_batches + task.micro_batch); }
  std::vector<Located>& have(TensorId tensor) {
    std::vector<std::vector<Located>>& of_slot = values[slot()];
    if (of_slot.empty()) of_slot.resize(c.graph.tensors.size());
    return of_slot[static_cast<size_t>(tensor)];
  }
  /// Computed by a recompute layer of this virtual stage: not kept from the forward to the backward pass.
  bool is_recomputed(TensorId tensor) const;

  /// Fills in the fields that all instructions of a task share.
  void emit(Instruction instruction, std::vector<View> inputs, std::vector<View> outputs);
  void emit_kernel(std::string name, const KernelDef& kernel, Attrs attrs, std::vector<View> inputs,
                   std::vector<View> outputs, Purpose purpose = Purpose::none);
  void emit_collective(std::string name, Collective kind, int group, const View& input, const View& output,
                       Purpose purpose);
  /// Makes a new buffer for the tensor in this layout. Without `format`, it has the format in which its node writes it.
  View new_tensor(TensorId tensor, LayoutId layout);
  View new_tensor(TensorId tensor, LayoutId layout, Format format);
  /// Makes a new buffer for a value that is not a tensor of the graph and that is not sharded.
  View new_value(BufferKind kind, Shape shape, DType dtype, std::string name);

 private:
  std::map<Layout, LayoutId> ids_;
  std::vector<const Layout*> layouts_;
  std::map<std::tuple<TensorId, LayoutId, LayoutId>, Way> ways_;
};

/// Attributes of a copy_slice of all elements in the same order: a type conversion, or the first contribution to a
/// range.
Attrs copy_of(int64_t elements);

// values.cpp
/// The tensor of the current micro-batch in this layout and format: as it is, loaded, received, redistributed,
/// recomputed or transposed.
View bring(Lowering& l, TensorId tensor, LayoutId layout, Format format = Format::declared);
/// Drops values at the end of a task, so that their memory can be reused. After the last task of a micro-batch in a
/// chunk, all its values are dropped; after its forward task, only the values that the backward pass recomputes.
void forget(Lowering& l);

// redistribute.cpp
View redistribute(Lowering& l, TensorId tensor, const View& from, const RedistributionStep& step);

// inner_sum.cpp
/// Returns the statistics of all shards, for a node whose inner dim is cut. They are computed and gathered, unless
/// another node of the layer has gathered the same statistics already.
View gathered_statistics(Lowering& l, NodeId node, const std::vector<View>& inputs);

// exchange_keys.cpp
/// Emits the kernels and the exchange of keys and values of an attention node whose ranks share the rows of a sequence
/// (plan/row_exchange.h).
void exchange_keys(Lowering& l, NodeId node);

// exchange_tokens.cpp
/// Lower a node of experts whose ranks exchange tokens, in two parts. begin_token_exchange sends the tokens. Nodes that
/// do not read results of the experts may be lowered next, so that they overlap with the messages.
/// finish_token_exchange computes the experts and returns for each output whether it was already added to its bucket.
void begin_token_exchange(Lowering& l, NodeId node);
std::vector<bool> finish_token_exchange(Lowering& l, NodeId node);

// lower_node.cpp
void lower_node(Lowering& l, NodeId node);

// lower_layer_collective.cpp
void lower_layer_collective(Lowering& l, const Node& node, const View& input, const View& output);

// split_backward.cpp
/// Returns for each node the kind of task that runs it. If the schedule splits the backward pass, nodes whose outputs
/// end in gradients of their own layer's parameters belong to weight_gradients.
std::vector<TaskKind> tasks_of_nodes(const Graph& graph, const Plan& plan);

// pipeline.cpp
void open_channels(Lowering& l);
bool receive(Lowering& l, TensorId tensor);  ///< returns false if no other virtual stage sends the tensor
void receive_rest(Lowering& l);
void send_outputs(Lowering& l, const Node& node);

// gradients.cpp
void start_gradients(Lowering& l);
/// The place in its bucket where output o of a node is written directly, if possible.
std::optional<View> gradient_target(Lowering& l, NodeId node, int o);
/// Adds a node's gradient outputs to their buckets, except those in `direct` (by output).
void contribute(Lowering& l, NodeId node, const std::vector<bool>& direct);
/// Reduces the buckets whose last contribution in this task is this node's.
void reduce_finished_buckets(Lowering& l, NodeId node);
/// Adds the results of reduce_scatters to the shards of earlier micro-batches.
void add_up_shards(Lowering& l);
/// Reduces the remaining buckets: buckets that several stages share, and buckets to which no node contributes.
void reduce_remaining_buckets(Lowering& l);
View gathered_weights(Lowering& l, int bucket);
/// This rank's shard of a piece, in a range laid out as the whole bucket.
View own_shard(const Lowering& l, int bucket, const Bucket::Piece& piece, BufferId range, std::string name, DType type);
/// An all_gather's operands: this rank's shard of a piece as kernels read it, and the whole piece.
std::pair<View, View> shard_and_whole(const Lowering& l, int bucket, const Bucket::Piece& piece);
/// Called at the first use of a bucket's weights in a step, with the layer that uses them. At levels 1 and 2, gathers
/// the weights here, during the forward pass, instead of after their update, if nothing reads them earlier. Does
/// nothing for the first layer, whose gather no kernel would overlap.
void gather_in_forward(Lowering& l, int bucket, LayerId layer);

// average_states.cpp
void average_states(Lowering& l);
/// Replaces states by their mean over `ranks`.
void average(Lowering& l, const std::string& name, const View& states, const std::vector<int>& ranks);

// synchronize_replicas.cpp
/// The whole program of EvaluationOf::Only::synchronize.
void synchronize_replicas(Lowering& l);

// finish_step.cpp
bool counts_loss(const Lowering& l);
void finish_step(Lowering& l);
/// The whole program of EvaluationOf::Only::exchange.
void exchange_averages(Lowering& l);
/// Gathers the weights of a piece from the ranks that have its other shards, after each rank has updated its own shard.
void gather_updated(Lowering& l, int bucket, const Bucket::Piece& piece);
/// Sums the loss and the metrics over all ranks.
void finish_loss(Lowering& l);
void all_reduce_numbers(Lowering& l, const std::string& name, Purpose purpose, const std::vector<int>& ranks,
                        const View& numbers);
Instruction once_per_step(Opcode opcode, std::string name, const KernelDef* kernel = nullptr);
/// Updates the weights of a piece. `norm` is the norm of all gradients; it is given if the job has clip_norm.
void update(Lowering& l, int bucket, const Bucket::Piece& piece, const std::optional<View>& norm);

// parameter_sums.cpp
/// Sets the attrs of placed_parameters.h: element 0 of the operands is element `first` of the bucket.
void place_parameters(const Lowering& l, int bucket, int64_t first, Attrs& attrs);
/// Emits what OptimizerDef::sums needs before the update, whose attrs are `attrs`. Returns the additional inputs of the
/// update: sums, norms, and the states of other shapes with their means.
std::vector<View> sum_over_parameters(Lowering& l, int bucket, const std::optional<View>& norm, const Attrs& attrs);

// serve.cpp
/// Emits a worker's pull of a bucket's weights, before their first use in a step.
void pull(Lowering& l, int bucket);
/// Emits a worker's push of a bucket's gradients, which are in `range`.
void push(Lowering& l, int bucket, BufferId range);
/// With asynchronous servers: sends the squared norm of this worker's gradients to each server.
void push_norm(Lowering& l, const View& norm);
/// Emits all instructions of a server's step.
void lower_server(Lowering& l);

}  // namespace trainctl
