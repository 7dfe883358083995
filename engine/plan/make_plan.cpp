// Graph -> Plan. The choices depend on each other in this order: ranks, stages, strategies, the axes of every
// layer, then the layouts of parameters and states.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/base/text.h"
#include "engine/plan/axes/candidates.h"
#include "engine/plan/axes/expert_strategies.h"
#include "engine/plan/axes/host_axes.h"
#include "engine/plan/axes/propagation.h"
#include "engine/plan/axes/shard_limits.h"
#include "engine/plan/axes/sharding_facts.h"
#include "engine/plan/axes/size_strategies.h"
#include "engine/plan/axes/strategies.h"
#include "engine/plan/expert_notes.h"
#include "engine/plan/hybrid/hybrid_shards.h"
#include "engine/plan/hybrid/hybrid_variables.h"
#include "engine/plan/hybrid/local_shards.h"
#include "engine/plan/narrow_layers.h"
#include "engine/plan/per_rank.h"
#include "engine/plan/plan.h"
#include "engine/plan/plan_memo.h"
#include "engine/plan/stages/kept_results.h"
#include "engine/plan/stages/recompute.h"
#include "engine/plan/stages/stages.h"
#include "engine/plan/traffic/context_method.h"
#include "engine/plan/traffic/sums.h"
#include "engine/spec/reference_model.h"

namespace trainctl {
namespace {

/// True for modes in which every layer is cut along its batch and along nothing else.
bool cuts_the_batch(ParallelMode mode) {
  return mode == ParallelMode::data_parallel || mode == ParallelMode::parameter_server;
}

// Fills in the fields of a plan that depend only on the job, such as ranks, stages and mode.
Plan plan_header(const JobSpec& spec, const CostModel& cost) {
  const ParallelSpec& parallel = spec.parallel;
  Plan plan;
  plan.mode = parallel.mode;
  plan.own_workers = spec.is_asynchronous() ? spec.launch.ranks : 0;
  plan.ranks = plan.is_asynchronous() ? 1 : spec.launch.ranks;
  plan.servers = spec.servers();
  plan.local_steps = parallel.local_steps;
  if (plan.has_replicas()) plan.replicas = parallel.replicas;  // launch.ranks counts the ranks of one replica
  plan.num_stages = parallel.mode == ParallelMode::stand_alone ? 1 : parallel.stages;
  plan.chunks = parallel.mode == ParallelMode::stand_alone ? 1 : parallel.chunks;
  plan.micro_batches = parallel.micro_batches;
  plan.rank_micro_batches.assign(parallel.rank_micro_batches.begin(), parallel.rank_micro_batches.end());
  plan.schedule = parallel.schedule;
  plan.optimizer_shard_level = plan.servers > 0 ? 0 : parallel.optimizer_shard.level;
  plan.optimizer_shard_min_bytes = parallel.optimizer_shard.min_kb * 1024;
  if (parallel.offload.optimizer == StatePlace::host) {
    plan.offloads_optimizer = cost.machine().kind == DeviceKind::cuda;
    plan.notes.push_back(
        plan.offloads_optimizer
            ? "parallel.offload: the optimizer's state is in the memory of the host, and updates access it over the bus"
            : "parallel.offload has no effect: the memory of ranks on CPUs is that of their host");
  }
  if (!parallel.offload.activations.empty() && cost.machine().kind == DeviceKind::cpu)
    plan.notes.push_back(
        "parallel.offload: ranks on CPUs copy activations within the memory of their host, which saves none");
  if (parallel.bucket_bytes > 0) plan.bucket_bytes = parallel.bucket_bytes;
  if (spec.gradient_precision == Precision::bf16) plan.gradient_type = DType::bf16;
  check(plan.mode != ParallelMode::auto_parallel, "find_plan must choose the settings that auto_parallel omits");
  if (plan.mode == ParallelMode::stand_alone && plan.ranks != 1) {
    throw SpecError(
        spec.position("launch.ranks"), "launch.ranks",
        fmt::format("parallel.mode is stand_alone, which runs on 1 rank, but launch.ranks is {}", plan.ranks),
        "set launch.ranks: 1, or parallel.mode: data_parallel");
  }
  if (plan.ranks < 1 || plan.num_stages < 1 || plan.ranks % plan.num_stages != 0) {
    const int above = (plan.ranks / std::max(plan.num_stages, 1) + 1) * plan.num_stages;
    throw SpecError(spec.position("launch.ranks"), "launch.ranks",
                    fmt::format("{} cannot be divided evenly into {}", plural(plan.ranks, "rank"),
                                plural(plan.num_stages, "stage")),
                    fmt::format("the next larger number of ranks that can be is {}", above));
  }
  plan.mesh = Mesh(plan.ranks / plan.num_stages);
  if (!parallel.optimizer_shard.within_host || plan.optimizer_shard_level == 0) return plan;
  const int of_host = ranks_of_host(spec, cost.machine());
  if (of_host == 0)
    throw SpecError(spec.position("parallel.optimizer_shard.within_host"), "parallel.optimizer_shard.within_host",
                    "the hosts have different numbers of ranks, so they cannot have the same shards",
                    "give every host the same number of ranks, or set within_host: false");
  plan.shard_axes = axes_within_hosts(plan.mesh, of_host);
  return plan;
}

void check_batch_divides(const Graph& graph, const JobSpec& spec, const Plan& plan, std::vector<Diagnostic>& errors) {
  const TensorId data = batch_tensor(graph);
  const int ranks = plan.mesh.size();
  if (data < 0 || graph.tensors[data].shape[0] % ranks == 0) return;
  const int64_t unit = static_cast<int64_t>(ranks) * plan.micro_batches;
  const int64_t below = spec.dataset.batch / unit * unit;
  errors.push_back(
      {spec.position("dataset.batch"), "dataset.batch",
       fmt::format("a micro-batch has {} rows (batch {} / {} micro-batches), which cannot be divided evenly over {} "
                   "ranks{}",
                   graph.tensors[data].shape[0], spec.dataset.batch, plan.micro_batches, ranks,
                   plan.num_stages > 1 ? " of a stage" : ""),
       fmt::format("{} needs a multiple of {}: {}", to_string(plan.mode), unit,
                   below > 0 ? fmt::format("{} or {}", below, below + unit) : std::to_string(unit))});
}

void say_whole(const Graph& graph, Plan& plan, Choice choice, const std::string& reason) {
  for (size_t l = 0; l < graph.layers.size(); ++l) {
    LayerPlan& layer = plan.layers[l];
    layer.choice = choice;
    layer.reason = reason;
    layer.factor_axes.assign(graph.layers[l].factors.size(), {});
  }
}

void cut_the_batch(const Graph& graph, const std::vector<LayerFacts>& facts, Plan& plan) {
  for (size_t l = 0; l < graph.layers.size(); ++l) {
    LayerPlan& layer = plan.layers[l];
    layer.choice = Choice::data_parallel;
    layer.factor_axes = data_parallel_axes(plan.mesh, graph.layers[l], facts[l]);
    layer.reason = data_parallel_reason(plan.mesh, graph.layers[l], facts[l]);
  }
}

/// Decides which axes cut each factor of each layer, by the mode of the plan.
void choose_axes(const Graph& graph, const std::vector<LayerFacts>& facts,
                 const std::vector<std::optional<LayerStrategy>>& strategies, const JobSpec& spec,
                 const CostModel& cost, PlanMemo& memo, Plan& plan) {
  if (plan.hybrid()) {
    say_whole(graph, plan, Choice::by_hand, "hybrid_parallel: each rank runs the network as written");
  } else if (plan.divides_micro_batches()) {
    say_whole(graph, plan, Choice::data_parallel, "each rank computes micro-batches of its own");
  } else if (plan.mesh.size() == 1) {
    say_whole(graph, plan, Choice::stand_alone, plan.num_stages == 1 ? "one rank" : "one rank per stage");
  } else if (cuts_the_batch(plan.mode)) {
    cut_the_batch(graph, facts, plan);
  }
  for (size_t l = 0; l < graph.layers.size(); ++l) {
    if (!strategies[l]) continue;
    plan.layers[l].choice = Choice::user;
    if (!memo.explains) continue;
    const StrategySpec* strategy = strategies[l]->spec;
    plan.layers[l].reason =
        strategy != nullptr ? strategy_reason(*strategy, spec.position(strategy->path)) : sizes_reason(spec, plan.mesh);
  }
  if (plan.mode == ParallelMode::semi_auto_parallel && plan.mesh.size() > 1) {
    propagate(graph, strategies, cost, memo, plan);
  }
}

// Returns for each tensor the nodes that read it, in order and without repetition.
std::vector<std::vector<NodeId>> readers_of_tensors(const Graph& graph) {
  std::vector<std::vector<NodeId>> readers(graph.tensors.size());
  for (NodeId n = 0; n < static_cast<NodeId>(graph.nodes.size()); ++n) {
    for (TensorId tensor : graph.nodes[n].inputs)
      if (readers[tensor].empty() || readers[tensor].back() != n) readers[tensor].push_back(n);
  }
  return readers;
}

void insert_once(std::vector<int>& ascending, int value) {
  const auto place = std::lower_bound(ascending.begin(), ascending.end(), value);
  if (place == ascending.end() || *place != value) ascending.insert(place, value);
}

// Chooses the stages and the layout of a parameter or state, from the nodes that read it. `by_hand` has one layout per
// tensor and is given only in hybrid_parallel.
VariablePlan place_variable(const Graph& graph, const std::vector<Layout>& by_hand, TensorId tensor,
                            const std::vector<NodeId>& readers, const Plan& plan) {
  VariablePlan variable;
  variable.tensor = tensor;
  variable.global_shape = graph.tensors[tensor].shape;
  variable.layout = Layout::replicated(static_cast<int>(variable.global_shape.size()));
  bool placed = false;
  for (NodeId reader : readers) {
    const Node& node = graph.nodes[reader];
    const auto at = std::find(node.inputs.begin(), node.inputs.end(), tensor);
    insert_once(variable.stages, plan.stage_of(node));
    insert_once(variable.virtual_stages, plan.virtual_stage_of(node));
    if (std::exchange(placed, true) || plan.hybrid()) continue;
    variable.layout = input_layout(graph, plan, node, static_cast<int>(at - node.inputs.begin()));
  }
  if (plan.hybrid()) {
    variable.layout = by_hand[tensor];
    for (size_t d = 0; d < variable.global_shape.size(); ++d) {
      variable.global_shape[d] *= plan.mesh.ways(variable.layout.dims[d]);
    }
  }
  if (variable.stages.empty()) variable.stages = variable.virtual_stages = {0};
  return variable;
}

void place_variables(const Graph& graph, const std::vector<Layout>& by_hand, Plan& plan) {
  const std::vector<std::vector<NodeId>> readers = readers_of_tensors(graph);
  for (const TensorKind kind : {TensorKind::parameter, TensorKind::state}) {
    for (TensorId t = 0; t < static_cast<TensorId>(graph.tensors.size()); ++t) {
      if (graph.tensors[t].kind == kind) plan.variables.push_back(place_variable(graph, by_hand, t, readers[t], plan));
    }
  }
}

// Adds notes about layers that compute over all rows of a batch, such as batch_norm. They see only the rows of one
// micro-batch, and in hybrid_parallel only the rows of one rank.
void note_mixed_rows(const Graph& graph, const JobSpec& spec, Plan& plan) {
  constexpr size_t kShown = 6;
  std::vector<std::string> names;
  int64_t rows = 0;
  for (const Layer& layer : graph.layers) {
    if (layer.mixed_rows == 0 || layer.mixed_rows == spec.dataset.batch) continue;
    names.push_back(layer.name);
    rows = std::max(rows, layer.mixed_rows);
  }
  if (names.empty()) return;
  const bool one = names.size() == 1, several = plan.micro_batches > 1;
  const std::string more = names.size() > kShown ? fmt::format(" and {} more", names.size() - kShown) : "";
  names.resize(std::min(names.size(), kShown));
  const bool of_rank = rows * plan.micro_batches < spec.dataset.batch;
  const std::string part = !several ? "rank" : of_rank ? "rank's micro-batch" : "micro-batch";
  const std::string depend = !several  ? "the number of ranks per stage"
                             : of_rank ? "parallel.micro_batches and the number of ranks per stage"
                                       : "parallel.micro_batches";
  plan.notes.push_back(fmt::format(
      "{}{} {} over the rows of the batch: {} only the {} rows of one {}, not all {}{}, so the results depend on {}",
      join(names), more, one ? "computes" : "compute", one ? "it uses" : "they use", rows, part, spec.dataset.batch,
      several ? ", as in PyTorch" : "", depend));
}

/// Checks layers with statistics of each rank's own rows, which no longer give the numbers of one rank, and notes that.
void note_own_statistics(const Graph& graph, Plan& plan) {
  std::string first;
  int64_t shards = 1, layers = 0;
  LayerId last = -1;
  for (const Node& node : graph.nodes) {
    if (node.phase != Phase::forward || !node.attrs.flag(kPerRank) || node.layer == last) continue;
    last = node.layer;
    const int64_t ways = shards_of_statistics(graph, plan, node), values = node.attrs.integer("count") / ways;
    const Layer& layer = graph.layers[static_cast<size_t>(node.layer)];
    if (values < 2)
      throw SpecError(layer.pos, layer.name,
                      "sync: false leaves each rank 1 value per feature in a micro-batch, so the output would be "
                      "constant",
                      "increase dataset.batch, use fewer ranks, or set sync: true");
    if (ways == 1) continue;
    if (layers++ == 0) first = layer.name;
    shards = std::max(shards, ways);
  }
  if (layers == 0) return;
  plan.notes.push_back(
      fmt::format("{}{}: with sync: false each rank normalizes over its own rows, 1/{} of a micro-batch, as PyTorch "
                  "does under DDP; "
                  "the results depend on the number of ranks that share a batch",
                  first, layers == 1 ? "" : fmt::format(" and {} more layers", layers - 1), shards));
}

// Notes for the user: rows that cannot be divided evenly, ranks that repeat each other's work, settings that this mode
// ignores.
void add_notes(const std::vector<std::optional<LayerStrategy>>& strategies, const JobSpec& spec, Plan& plan) {
  const bool cuts_layers = plan.mode == ParallelMode::semi_auto_parallel || plan.hybrid();
  if (!cuts_layers && !spec.parallel.strategies.empty()) {
    plan.notes.push_back(fmt::format("parallel.strategies is not used in {} mode", to_string(plan.mode)));
  }
  if (plan.mode == ParallelMode::stand_alone && spec.parallel.stages > 1) {
    plan.notes.push_back("stand_alone runs in one stage, so parallel.stages and stage_config are not used");
  }
  if (spec.parallel.mode != ParallelMode::parameter_server && spec.parallel.servers > 1) {
    plan.notes.push_back(fmt::format("parallel.servers is not used in {} mode", to_string(plan.mode)));
  }
  if (plan.is_asynchronous())
    plan.notes.push_back(
        "asynchronous workers: the training depends on their timing, so two runs give different "
        "results");
  const bool has_tables = plan.servers > 0 && !spec.parallel.tables.empty();
  if (has_tables && !plan.is_asynchronous()) {
    plan.notes.push_back(
        spec.parallel.staleness > 0
            ? "table rows may lack updates of the previous step, depending on timing, so two runs give different "
              "results"
            : "parallel.staleness is 0: table rows include all updates of the previous steps");
  } else if (plan.servers > 0 && !spec.parallel.sync && spec.parallel.staleness == 0) {
    plan.notes.push_back("parallel.staleness is 0: the steps are synchronous");
  }
  if (plan.shard_axes && static_cast<int>(plan.shard_axes->size()) == plan.mesh.num_axes())
    plan.notes.push_back("parallel.optimizer_shard.within_host has no effect: all ranks of a stage are on one host");
  if (plan.shard_axes && plan.shard_axes->empty() && plan.mesh.num_axes() > 0)
    plan.notes.push_back(
        "parallel.optimizer_shard has no effect: within_host shards over the ranks of a stage on the same host, but "
        "each host has only one of them");
  const auto add_once = [&plan](const std::string& note) {
    if (std::find(plan.notes.begin(), plan.notes.end(), note) == plan.notes.end()) plan.notes.push_back(note);
  };
  for (size_t l = 0; l < plan.layers.size(); ++l) {
    const LayerPlan& layer = plan.layers[l];
    if (!layer.advice.empty()) add_once(layer.advice);
    if (!strategies[l] || strategies[l]->spec == nullptr || plan.hybrid()) continue;
    Axes cutting;
    for (const Axes& axes : layer.factor_axes) {
      const Axes fresh = without(axes, cutting);
      cutting.insert(cutting.end(), fresh.begin(), fresh.end());
    }
    const int ways = plan.mesh.ways(cutting);
    if (ways == plan.mesh.size()) continue;
    add_once(fmt::format("strategy of {}: {} on {} ranks, so groups of {} ranks do the same work",
                         strategies[l]->spec->pattern, cut_text(ways), plan.mesh.size(), plan.mesh.size() / ways));
  }
}

/// The job with strategies in place of parallel.expert.
JobSpec with_expert_strategies(const Graph& graph, const std::vector<LayerFacts>& facts, const JobSpec& spec,
                               const CostModel& cost, Plan& plan, std::vector<Diagnostic>& errors) {
  JobSpec expanded = spec;
  for (StrategySpec& strategy : expert_strategies(graph, facts, spec, plan.mesh, cost, plan.notes, errors))
    expanded.parallel.strategies.push_back(std::move(strategy));
  return expanded;
}

/// The strategies of layers, from the job and from the sizes of parallel.data, tensor and context. Chooses the method
/// by which ranks exchange keys, on which the latter depend.
std::vector<std::optional<LayerStrategy>> strategies_of(const Graph& graph, const std::vector<LayerFacts>& facts,
                                                        const JobSpec& spec, const CostModel& cost, Plan& plan,
                                                        std::vector<Diagnostic>& errors) {
  std::vector<std::optional<LayerStrategy>> strategies(graph.layers.size());
  if (plan.mode == ParallelMode::semi_auto_parallel || plan.hybrid())
    strategies = read_strategies(graph, facts, spec, plan.mesh, errors);
  if (plan.mode == ParallelMode::semi_auto_parallel && spec.parallel.has_sizes()) {
    const std::vector<ContextMethodCost> costs = context_method_costs(graph, spec.parallel, plan.mesh, cost);
    plan.context_method = choose_context_method(spec.parallel, costs);
    add_size_strategies(graph, facts, spec, plan.mesh, plan.context_method, strategies, errors);
    if (std::string note = context_method_note(graph, spec.parallel, plan.context_method, costs); !note.empty())
      plan.notes.push_back(std::move(note));
  }
  return strategies;
}

/// Sets for each layer its stage, and what happens to its tensors until the backward pass: kept, recomputed or moved to
/// the host.
void place_layers(const Graph& graph, const std::vector<LayerFacts>& facts, const JobSpec& spec,
                  const std::vector<int>& stages, Plan& plan) {
  plan.layers.resize(graph.layers.size());
  const RecomputedLayers recomputed = recomputed_layers(graph, facts, spec.parallel.recompute);
  const std::vector<OffloadRule>& offload = spec.parallel.offload.activations;
  for (size_t l = 0; l < plan.layers.size(); ++l) {
    plan.layers[l].virtual_stage = stages[l];
    plan.layers[l].recompute = recomputed.of_layer[l];
    plan.layers[l].offload = rule_for(offload, graph.layers[l].name, facts[l].is_loss) != nullptr;
  }
  if (std::string note = note_on_kept_outputs(graph, recomputed); !note.empty()) plan.notes.push_back(std::move(note));
}

/// Makes the plan in the order of its decisions: stages, strategies, layers, redistribution, recompute, variables.
/// Throws SpecError.
Plan plan_with(const Graph& graph, const JobSpec& job, const CostModel& cost, PlanMemo& memo) {
  Plan plan = plan_header(job, cost);
  plan.numerics = numerics_of(graph, job);
  if (!memo.facts) memo.facts = std::make_unique<const GraphFacts>(graph);
  const std::vector<LayerFacts>& facts = memo.facts->layers;
  std::vector<Diagnostic> errors;
  std::optional<JobSpec> expanded;
  if (job.parallel.expert > 1) expanded = with_expert_strategies(graph, facts, job, cost, plan, errors);
  const JobSpec& spec = expanded ? *expanded : job;

  std::vector<int> stages(graph.layers.size(), 0);
  if (plan.num_stages > 1 || plan.mode != ParallelMode::stand_alone) {
    stages = assign_stages(graph, facts, spec, cost, memo.stage_speeds, errors);
  }
  const std::vector<std::optional<LayerStrategy>> strategies = strategies_of(graph, facts, spec, cost, plan, errors);
  std::vector<Layout> by_hand;
  if (plan.hybrid() && errors.empty()) by_hand = hybrid_layouts(graph, strategies, spec, plan.mesh, errors);
  if (cuts_the_batch(plan.mode) && !plan.divides_micro_batches()) check_batch_divides(graph, spec, plan, errors);
  if (!errors.empty()) throw SpecError(std::move(errors));
  require_few_executions(graph, spec);

  place_layers(graph, facts, spec, stages, plan);
  choose_axes(graph, facts, strategies, spec, cost, memo, plan);
  place_sums(graph, cost, memo.explains, plan);
  choose_kept_results(graph, cost, memo.explains, plan);
  place_variables(graph, by_hand, plan);
  if (errors = shards_too_large(graph, spec, plan); !errors.empty()) throw SpecError(std::move(errors));
  if (plan.hybrid()) plan.hybrid_shards = hybrid_shards(graph, by_hand, plan.mesh, spec.parallel.full_batch);
  add_notes(strategies, spec, plan);
  note_mixed_rows(graph, spec, plan);
  note_own_statistics(graph, plan);
  note_experts(graph, cost, plan);
  if (plan.hybrid()) {
    const std::vector<LocalShards> shards = local_shards(graph, plan, spec.parallel.full_batch);
    for (std::string& note : equal_shard_notes(graph, plan, shards)) plan.notes.push_back(std::move(note));
  }
  return plan;
}

}  // namespace

Numerics numerics_of(const Graph& graph, const JobSpec& spec) {
  OptimizerSpec optimizer = spec.optimizer;
  optimizer.on_spike = spec.train.on_spike;
  optimizer.scales_loss = spec.precision == Precision::fp16;
  optimizer.skips_not_finite = spec.train.on_nan == OnNan::skip || spec.train.on_spike || optimizer.scales_loss;
  return {.precision = spec.precision,
          .fp8 = spec.fp8,
          .narrow_layers = narrow_layers(graph, spec),
          .optimizer = std::move(optimizer),
          .outer = spec.parallel.outer,
          .keeps_gradients = spec.train.histograms > 0 || spec.train.fingerprints > 0,
          .reads_all_rows = spec.parallel.full_batch};
}

std::string_view to_string(Choice choice) {
  switch (choice) {
    case Choice::user:
      return "user";
    case Choice::propagated:
      return "propagated";
    case Choice::data_parallel:
      return "data_parallel";
    case Choice::stand_alone:
      return "stand_alone";
    case Choice::by_hand:
      return "by hand";
  }
  return "?";
}

void explain_strategies(const Graph& graph, const JobSpec& spec, Plan& plan) {
  const std::vector<LayerFacts> facts = sharding_facts(graph);
  for (size_t l = 0; l < graph.layers.size(); ++l) {
    if (plan.layers[l].choice != Choice::user) continue;
    const StrategySpec* strategy =
        rule_for(spec.parallel.strategies, layer_in_job(graph.layers[l].name), facts[l].is_loss);
    if (strategy == nullptr) continue;  // the strategy follows from parallel.data, tensor, context or expert
    StrategySpec bare = *strategy;
    bare.reason.clear();
    // Text that follows the strategy's own reason is kept.
    std::string& reason = plan.layers[l].reason;
    const SourcePos pos = spec.position(strategy->path);
    const std::string before = strategy_reason(bare, pos);
    if (reason.starts_with(before)) reason.replace(0, before.size(), strategy_reason(*strategy, pos));
  }
}

Plan make_plan(const Graph& graph, const JobSpec& spec, const CostModel& cost) {
  PlanMemo memo;
  return plan_with(graph, spec, cost, memo);
}

Plan make_plan(const Graph& graph, const JobSpec& spec, const CostModel& cost, PlanMemo& memo) {
  return plan_with(graph, spec, cost, memo);
}

}  // namespace trainctl
