// Groups parameters that are reduced, gathered and updated together into buckets.
//
// Plan and graph enter; a list of BucketPlans leaves, in the order in which the backward pass completes their
// gradients. Parameters are visited from the last to the first:
//
//   candidate()      the parameter, and the key that all parameters of its bucket share
//   pieces_of()      the last large gradient of a step is divided, so that its reduction overlaps with its computation
//   takes()          the open bucket of this key takes the parameter, unless it is full; then a new bucket opens
//   place_on_servers, lay_out   when all buckets are complete: their servers, and the place of each parameter in them
#include <algorithm>
#include <compare>
#include <map>
#include <numeric>

#include "engine/base/error.h"
#include "engine/base/round_up.h"
#include "engine/compile/lower/buckets.h"
#include "engine/compile/lower/packed_states.h"
#include "engine/compile/parameter_optimizer.h"
#include "engine/ops/op_def.h"
#include "engine/ops/pack_states/packed_state.h"
#include "engine/plan/served.h"

namespace trainctl {
namespace {

/// Properties that all parameters of a bucket share. One of them is the list of chunks: a bucket is reduced when its
/// last gradient is complete, so a parameter of a later chunk would delay the reduction.
struct BucketKey {
  std::vector<int> virtual_stages;
  Axes sum_axes;  ///< axes over which the gradients are partial sums
  int level = 0;  ///< level of optimizer_shard
  bool updated = false;
  LayerId layer = -1;  ///< -1: parameters of several layers may share a bucket
  int group = -1;      ///< group of parameters with settings of their own
  bool companion = false;
  StateType state_type = StateType::fp32;

  auto operator<=>(const BucketKey&) const = default;
};

/// A bucket in which each parameter belongs to one shard as a whole may be this many times as large as an ordinary
/// bucket. With more parameters, the sizes of the shards differ less.
constexpr int64_t kBucketsWithWholeParameters = 4;

struct Candidate {
  BucketParameter parameter;
  BucketKey key;
};

/// The axes over which this contribution is a partial sum and may stay one in the parameter's layout.
Axes partial_axes(const Graph& graph, const Plan& plan, TensorId gradient, const Layout& variable) {
  const NodeId producer = graph.tensors[gradient].producer;
  check(producer >= 0, "a gradient has a node that makes it: " + graph.tensors[gradient].name);
  const Node& node = graph.nodes[producer];
  const auto output = std::find(node.outputs.begin(), node.outputs.end(), gradient) - node.outputs.begin();
  Axes axes;
  for (Axis axis : output_layout(graph, plan, node, static_cast<int>(output)).partial) {
    if (!variable.uses(axis)) axes.push_back(axis);
  }
  std::sort(axes.begin(), axes.end());
  return axes;
}

/// Contributions that are all partial over the same axes stay partial until the bucket is reduced; otherwise each
/// is reduced as soon as it is computed.
Axes common_partial_axes(const Graph& graph, const Plan& plan, const std::vector<TensorId>& gradients,
                         const Layout& variable) {
  Axes common;
  for (size_t i = 0; i < gradients.size(); ++i) {
    Axes axes = partial_axes(graph, plan, gradients[i], variable);
    if (i == 0) common = axes;
    if (axes != common) return {};
  }
  return common;
}

/// Returns for each tensor the layer of the first node that reads it, or -1 if no node reads it.
std::vector<LayerId> first_readers(const Graph& graph) {
  std::vector<LayerId> layers(graph.tensors.size(), -1);
  for (const Node& node : graph.nodes) {
    for (TensorId tensor : node.inputs)
      if (layers[tensor] < 0) layers[tensor] = node.layer;
  }
  return layers;
}

/// Returns the global numbers of the ranks that differ from `rank_in_stage` only along `axes`.
std::vector<int> ranks_along(const Mesh& mesh, const Axes& axes, int stage, int rank_in_stage) {
  std::vector<int> ranks = mesh.group(rank_in_stage, axes);
  for (int& rank : ranks) rank += stage * mesh.size();
  return ranks;
}

Axes shard_axes(const Plan& plan, const Axes& sum_axes) {
  if (!plan.shard_axes) return sum_axes;
  Axes axes;
  for (Axis axis : sum_axes)
    if (std::find(plan.shard_axes->begin(), plan.shard_axes->end(), axis) != plan.shard_axes->end())
      axes.push_back(axis);
  return axes;
}

/// A parameter with the key that says which others can share its bucket: the same stages, axes, level and so on.
Candidate candidate(const Graph& graph, const Plan& plan, const VariablePlan& variable,
                    const std::vector<TensorId>& gradients, int group, bool companion, LayerId first_reader) {
  Candidate c;
  BucketParameter& p = c.parameter;
  p.tensor = variable.tensor;
  p.gradients = gradients;
  p.gradient_layout = variable.layout;
  p.gradient_layout.partial = common_partial_axes(graph, plan, gradients, variable.layout);
  p.elements = num_elements(variable.layout.local_shape(plan.mesh, variable.global_shape));

  const bool updated = !gradients.empty();
  const Axes& sum_axes = p.gradient_layout.partial;
  const bool several = plan.mesh.ways(sum_axes) * variable.stages.size() > 1;
  const bool large = p.elements * byte_size(DType::f32) >= plan.optimizer_shard_min_bytes;
  const bool of_table = is_table(plan, variable.tensor);
  int level = updated && several && large && !of_table ? plan.optimizer_shard_level : 0;
  if (variable.stages.size() > 1) level = std::min(level, plan.shard_axes ? 0 : 1);
  if (plan.mesh.ways(shard_axes(plan, sum_axes)) == 1 && plan.shard_axes) level = 0;

  const OptimizerSpec& spec = plan.numerics.optimizer;
  StateType state_type = updated ? spec.state_type : StateType::fp32;
  if (state_type == StateType::int8 && !keeps_codes(spec, variable.global_shape)) state_type = StateType::fp32;

  // A push or pull must not wait for other layers.
  const bool by_layer = level == 3 || serves_weights(plan) || of_table;
  c.key = {variable.virtual_stages,      sum_axes, level,     updated,
           by_layer ? first_reader : -1, group,    companion, state_type};
  return c;
}

/// The bucket of this number, with the settings that all of its parameters share.
BucketPlan empty_bucket(const Plan& plan, const VariablePlan& variable, const Candidate& first, size_t number) {
  BucketPlan bucket;
  bucket.name = "bucket" + std::to_string(number);
  bucket.stages = variable.stages;
  bucket.is_table = is_table(plan, variable.tensor);
  // Each worker has different rows of a table, so gradients of a table are not summed over workers.
  if (!bucket.is_table) bucket.sum_axes = first.parameter.gradient_layout.partial;
  bucket.level = first.key.level;
  bucket.shard_axes = shard_axes(plan, bucket.sum_axes);
  bucket.updated = first.key.updated;
  bucket.group = first.key.group;
  bucket.type = plan.gradient_type;
  bucket.kept = bucket.level >= 2 && plan.micro_batches > 1 ? DType::f32 : bucket.type;
  bucket.uses_companion = first.key.companion;
  bucket.state_type = first.key.state_type;
  return bucket;
}

/// A bucket of small parameters takes a parameter of any size. A separate reduction would delay the next one by
/// more than the transfer of its bytes, especially on a GPU, where it waits until a product leaves it a
/// multiprocessor.
bool takes(const BucketPlan& bucket, const BucketParameter& parameter, int64_t most) {
  const int64_t size = byte_size(bucket.type), sliver = std::min(kSliverBytes, most / (kBucketBytes / kSliverBytes));
  return bucket.elements * size <= sliver || (bucket.elements + parameter.elements) * size <= most;
}

int64_t line_elements(DType type) { return 64 / byte_size(type); }

/// Returns the number of elements of which the first element of each parameter in the bucket is a multiple. int8 states
/// are coded in blocks of kStateBlock elements, and a block must not contain two parameters.
int64_t alignment_of(const BucketPlan& bucket) { return bucket.state_type == StateType::int8 ? kStateBlock : 1; }

/// Gives each parameter to one shard: the largest first, each to the shard with the fewest elements so far.
///
///   [p0 p3 | p1 p2 . | p4 p5 p6 ..]     shards of the size of the largest, filled up with padding
void lay_out_whole(BucketPlan& bucket, int shards, int64_t line) {
  std::vector<size_t> by_size(bucket.parameters.size());
  std::iota(by_size.begin(), by_size.end(), 0);
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](size_t a, size_t b) { return bucket.parameters[a].elements > bucket.parameters[b].elements; });
  std::vector<std::vector<size_t>> parameters_of(static_cast<size_t>(shards));
  std::vector<int64_t> used(static_cast<size_t>(shards));
  for (const size_t p : by_size) {
    const auto least = std::min_element(used.begin(), used.end()) - used.begin();
    parameters_of[static_cast<size_t>(least)].push_back(p);
    used[static_cast<size_t>(least)] += round_up(bucket.parameters[p].elements, alignment_of(bucket));
  }
  const int64_t capacity = round_up(*std::max_element(used.begin(), used.end()), line);
  std::vector<BucketParameter> ordered;
  for (size_t shard = 0; shard < parameters_of.size(); ++shard) {
    std::stable_partition(parameters_of[shard].begin(), parameters_of[shard].end(),
                          [&](size_t p) { return bucket.parameters[p].elements % line == 0; });
    int64_t at = static_cast<int64_t>(shard) * capacity;
    for (const size_t p : parameters_of[shard]) {
      ordered.push_back(std::move(bucket.parameters[p]));
      ordered.back().first_element = at;
      at += round_up(ordered.back().elements, alignment_of(bucket));
    }
  }
  bucket.parameters = std::move(ordered);
  bucket.elements = capacity * shards;
}

/// Parameters whose size is a multiple of a cache line come first, so that each starts at one without padding; then
/// the rest.
void lay_out(BucketPlan& bucket, const Mesh& mesh) {
  const int64_t line = std::max(line_elements(bucket.type), alignment_of(bucket));
  if (bucket.keeps_parameters_whole && bucket.level > 0) return lay_out_whole(bucket, bucket.num_shards(mesh), line);
  std::stable_partition(bucket.parameters.begin(), bucket.parameters.end(),
                        [line](const BucketParameter& p) { return p.elements % line == 0; });
  bucket.elements = 0;
  for (BucketParameter& p : bucket.parameters) {
    p.first_element = bucket.elements;
    bucket.elements += round_up(p.elements, alignment_of(bucket));
  }
  if (bucket.level == 0 && !bucket.is_served()) return;
  const auto shards = bucket.is_served() ? static_cast<int>(bucket.servers.size()) : bucket.num_shards(mesh);
  const int64_t unit = line * shards;
  bucket.elements = round_up(bucket.elements, unit);
}

/// Returns true if contributions are added up in an f32 range before they are rounded to the type that ranks sum. This
/// is so if a rank makes several contributions between two sums over ranks: each would otherwise round the sum once
/// more.
bool accumulates_separately(const Plan& plan, const BucketPlan& bucket) {
  const bool several = std::any_of(bucket.parameters.begin(), bucket.parameters.end(),
                                   [](const BucketParameter& p) { return p.gradients.size() > 1; });
  return bucket.type != DType::f32 && (several || (bucket.level < 2 && plan.micro_batches > 1));
}

bool is_of_product(const Graph& graph, const std::vector<TensorId>& gradients) {
  return gradients.size() == 1 && get_op(graph.nodes[graph.tensors[gradients[0]].producer].op).kernel.makes_rows;
}

/// Returns the number of pieces into which a parameter is divided. No computation is left that could overlap with the
/// reduction of the step's last gradient. If this gradient is large, it is computed, reduced, updated and gathered in
/// pieces, so that only the last piece is not overlapped.
int pieces_of(const Graph& graph, const Plan& plan, const VariablePlan& variable, const BucketParameter& parameter,
              const BucketKey& key, bool one_piece) {
  constexpr int64_t kMostPieces = 8;
  const int64_t ways = plan.mesh.ways(key.sum_axes), bytes = parameter.elements * byte_size(DType::f32);
  if (one_piece) return 1;
  if (!key.updated || ways == 1 || serves_weights(plan) || is_table(plan, variable.tensor)) return 1;
  if (key.level > 2 || variable.stages.size() > 1 || plan.has_local_tensors()) return 1;
  // make_in_pieces needs the sum of each piece as one contiguous range. A shard that is reduced twice, within a host
  // and over hosts, does not have such a range.
  if (key.level > 0 && shard_axes(plan, key.sum_axes) != key.sum_axes) return 1;
  if (plan.gradient_type != DType::f32 && key.level < 2 && plan.micro_batches > 1)
    return 1;  // its contributions add up in a separate buffer
  if (!is_of_product(graph, parameter.gradients)) return 1;
  const int64_t rows = variable.layout.local_shape(plan.mesh, variable.global_shape)[0];
  for (int64_t pieces = std::min(kMostPieces, bytes / plan.gradient_piece_bytes); pieces > 1; --pieces)
    if (rows % pieces == 0 && parameter.elements % (pieces * ways * line_elements(plan.gradient_type)) == 0)
      return static_cast<int>(pieces);
  return 1;
}

/// Returns true for the parameter whose gradient is computed last in its stages. Also returns true for the parameter of
/// the preceding matrix product if order_gradients may swap the two products.
bool is_last(const Graph& graph, const Plan& plan, const std::map<TensorId, std::vector<TensorId>>& gradients,
             const VariablePlan& variable, int level) {
  const bool may_change = plan.copies_weights() && (level == 1 || (level == 2 && plan.micro_batches == 1));
  int found = 0;
  for (const VariablePlan& v : plan.variables) {
    const auto of = gradients.find(v.tensor);
    if (v.stages != variable.stages || of == gradients.end() || of->second.empty()) continue;
    if (found > 0 && !is_of_product(graph, of->second)) continue;
    if (v.tensor == variable.tensor) return true;
    if (++found == (may_change ? 2 : 1)) return false;
  }
  return false;
}

/// Distributes all buckets that are updated over the parameter servers, with about equal bytes. Each byte is pushed and
/// pulled once per step, so servers with equal bytes also have equal traffic.
void place_on_servers(const Plan& plan, std::vector<BucketPlan>& buckets) {
  if (!serves_weights(plan)) return;
  std::vector<int> all(static_cast<size_t>(plan.servers));
  std::iota(all.begin(), all.end(), 0);
  std::vector<BucketPlan*> whole;
  for (BucketPlan& bucket : buckets) {
    if (!bucket.updated || bucket.is_table) continue;
    if (bucket.elements * byte_size(DType::f32) >= kLeastServedBytes * plan.servers)
      bucket.servers = all;
    else
      whole.push_back(&bucket);
  }
  std::stable_sort(whole.begin(), whole.end(),
                   [](const BucketPlan* a, const BucketPlan* b) { return a->elements > b->elements; });
  std::vector<int64_t> elements_of(all.size());
  for (BucketPlan* bucket : whole) {
    const auto least = std::min_element(elements_of.begin(), elements_of.end());
    *least += bucket->elements;
    bucket->servers = {static_cast<int>(least - elements_of.begin())};
  }
}

/// The gradients of each parameter, and the group of its settings.
struct Updates {
  std::map<TensorId, std::vector<TensorId>> gradients;
  std::map<TensorId, int> groups;

  explicit Updates(const Graph& graph) {
    if (graph.loss < 0) return;
    for (const Update& update : graph.updates) {
      gradients[update.parameter] = update.gradients;
      groups[update.parameter] = update.group;
    }
  }
};

/// The buckets so far. A bucket is open while it may take more parameters.
class Buckets {
 public:
  Buckets(const Graph& graph, const Plan& plan) : graph_(graph), plan_(plan), updates_(graph) {}

  void add(const VariablePlan& variable, LayerId first_reader) {
    const auto of_group = updates_.groups.find(variable.tensor);
    const int group = of_group == updates_.groups.end() ? -1 : of_group->second;
    const OptimizerSpec& spec = plan_.numerics.optimizer;
    const bool companion = of_group != updates_.groups.end() && uses_companion(graph_, spec, variable.tensor, group);
    Candidate one =
        candidate(graph_, plan_, variable, updates_.gradients[variable.tensor], group, companion, first_reader);
    const Optimizer optimizer = optimizer_of(spec, group, companion);
    const bool keeps_whole = one.key.updated && (spec.clip_parameter_norm > 0 || optimizer.needs_whole_parameters());
    const bool one_piece = keeps_whole || optimizer.def.sums != nullptr || one.key.state_type == StateType::int8;
    int pieces = pieces_of(graph_, plan_, variable, one.parameter, one.key, one_piece);
    if (pieces > 1 && !is_last(graph_, plan_, updates_.gradients, variable, one.key.level)) pieces = 1;
    BucketPlan& bucket =
        pieces == 1 && fits(one, keeps_whole) ? all_[open_[one.key]] : open(variable, one, pieces, keeps_whole);
    bucket.elements += one.parameter.elements;
    bucket.parameters.push_back(std::move(one.parameter));
    if (pieces > 1) open_.erase(one.key);
  }

  std::vector<BucketPlan> take() {
    place_on_servers(plan_, all_);
    for (BucketPlan& bucket : all_) {
      lay_out(bucket, plan_.mesh);
      bucket.accumulates_separately = accumulates_separately(plan_, bucket);
    }
    return std::move(all_);
  }

 private:
  /// Returns true if there is an open bucket of this key that takes the parameter.
  bool fits(const Candidate& one, bool keeps_whole) const {
    const auto found = open_.find(one.key);
    if (found == open_.end()) return false;
    if (one.key.level == 3 || serves_weights(plan_)) return true;
    return takes(all_[found->second], one.parameter,
                 plan_.bucket_bytes * (keeps_whole ? kBucketsWithWholeParameters : 1));
  }

  BucketPlan& open(const VariablePlan& variable, const Candidate& one, int pieces, bool keeps_whole) {
    open_[one.key] = all_.size();
    BucketPlan& bucket = all_.emplace_back(empty_bucket(plan_, variable, one, all_.size()));
    bucket.pieces = pieces;
    bucket.keeps_parameters_whole = keeps_whole;
    return bucket;
  }

  const Graph& graph_;
  const Plan& plan_;
  Updates updates_;
  std::vector<BucketPlan> all_;
  std::map<BucketKey, size_t> open_;
};

}  // namespace

std::vector<std::pair<int64_t, int64_t>> BucketPlan::padding() const {
  std::vector<std::pair<int64_t, int64_t>> gaps;
  int64_t at = 0;
  for (const BucketParameter& p : parameters) {
    if (at < p.first_element) gaps.emplace_back(at, p.first_element);
    at = p.first_element + p.elements;
  }
  if (at < elements) gaps.emplace_back(at, elements);
  return gaps;
}

int BucketPlan::part_of_server(int server) const {
  const auto at = std::find(servers.begin(), servers.end(), server);
  return at == servers.end() ? -1 : static_cast<int>(at - servers.begin());
}

bool BucketPlan::in_stage(int stage) const { return std::find(stages.begin(), stages.end(), stage) != stages.end(); }

bool BucketPlan::is_whole_on_ranks() const {
  return level == 0 && std::all_of(parameters.begin(), parameters.end(), [](const BucketParameter& p) {
           const auto& dims = p.gradient_layout.dims;
           return std::all_of(dims.begin(), dims.end(), [](const Axes& axes) { return axes.empty(); });
         });
}

std::vector<int> BucketPlan::reduce_ranks(const Mesh& mesh, int rank_in_stage) const {
  std::vector<int> ranks;
  for (int stage : stages) {
    for (int r : mesh.group(rank_in_stage, sum_axes)) ranks.push_back(stage * mesh.size() + r);
  }
  return ranks;
}

std::vector<int> BucketPlan::across_ranks(const Mesh& mesh, int stage, int rank_in_stage) const {
  return ranks_along(mesh, across_axes(), stage, rank_in_stage);
}

std::vector<int> BucketPlan::shard_ranks(const Mesh& mesh, int stage, int rank_in_stage) const {
  return ranks_along(mesh, shard_axes, stage, rank_in_stage);
}

int BucketPlan::num_shards(const Mesh& mesh) const {
  return is_summed_twice() ? mesh.ways(shard_axes) : num_reduce_ranks(mesh);
}

int BucketPlan::shard_index(const Mesh& mesh, int stage, int rank_in_stage) const {
  return is_summed_twice() ? mesh.index(rank_in_stage, shard_axes) : reduce_index(mesh, stage, rank_in_stage);
}

int BucketPlan::num_reduce_ranks(const Mesh& mesh) const {
  return mesh.ways(sum_axes) * static_cast<int>(stages.size());
}

int BucketPlan::reduce_index(const Mesh& mesh, int stage, int rank_in_stage) const {
  return first_reduce_index(mesh, stage) + mesh.index(rank_in_stage, sum_axes);
}

int BucketPlan::first_reduce_index(const Mesh& mesh, int stage) const {
  const auto before = std::find(stages.begin(), stages.end(), stage) - stages.begin();
  return static_cast<int>(before) * mesh.ways(sum_axes);
}

std::vector<BucketPlan> plan_buckets(const Graph& graph, const Plan& plan) {
  const std::vector<LayerId> readers = first_readers(graph);
  Buckets buckets(graph, plan);
  for (auto variable = plan.variables.rbegin(); variable != plan.variables.rend(); ++variable) {
    const Tensor& tensor = graph.tensors[variable->tensor];
    if (tensor.kind == TensorKind::parameter && tensor.packing == Packing::none)
      buckets.add(*variable, readers[variable->tensor]);
  }
  return buckets.take();
}

}  // namespace trainctl
