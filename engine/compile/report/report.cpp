// Plan and programs -> the report of `trainctl plan`.
#include "engine/compile/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "engine/base/ranges.h"
#include "engine/base/text.h"
#include "engine/compile/report/communication_report.h"
#include "engine/compile/report/json_row.h"
#include "engine/compile/report/local_shards_report.h"
#include "engine/compile/report/parallel_sizes.h"
#include "engine/compile/report/product_flops.h"
#include "engine/compile/report/served_report.h"
#include "engine/compile/report/token_traffic.h"
#include "engine/graph/counted_rows.h"
#include "engine/ops/program_kernels.h"
#include "engine/ops/quantise/quantise.h"
#include "engine/plan/expert_notes.h"
#include "engine/plan/served.h"

namespace trainctl {

using Json = nlohmann::ordered_json;

namespace {

Ints cuts(const Layout& layout, const Mesh& mesh) {
  Ints result;
  for (const Axes& axes : layout.dims) result.push_back(mesh.ways(axes));
  return result;
}

/// The layout in the JSON omits the axes over which the tensor is a partial sum.
Json tensor_json(const Graph& graph, const Plan& plan, TensorId id, Layout layout) {
  layout.partial.clear();
  return json_row("tensor", graph.tensors[id].name, "shape", graph.tensors[id].shape, "cuts", cuts(layout, plan.mesh),
                  "layout", to_string(layout, plan.mesh));
}

/// A count that may exceed an int64_t.
Json count_json(double count) { return count < 9e18 ? Json(static_cast<int64_t>(count)) : Json(count); }

/// Elements of the parameters that a layer reads, including shared ones.
int64_t count_parameters(const Graph& graph, const Layer& layer) {
  int64_t count = 0;
  for (const TensorId t : layer.inputs) {
    const Tensor& tensor = graph.tensors[static_cast<size_t>(t)];
    if (tensor.kind == TensorKind::parameter) count += num_elements(unpacked_shape(tensor.shape, tensor.packing));
  }
  return count;
}

/// A layer in `plan --json`.
Json layer_json(const Graph& graph, const Plan& plan, size_t index, double flops) {
  const Layer& layer = graph.layers[index];
  const LayerPlan& chosen = plan.layers[index];
  Json strategy = Json::array(), inputs = Json::array(), outputs = Json::array(), factors = Json::array();
  const auto id = static_cast<LayerId>(index);
  const std::vector<Layout> read = layer_inputs(graph, plan, id), made = layer_outputs(graph, plan, id);
  for (size_t i = 0; i < read.size(); ++i) {
    strategy.push_back(cuts(read[i], plan.mesh));
    inputs.push_back(tensor_json(graph, plan, layer.inputs[i], read[i]));
  }
  for (size_t i = 0; i < made.size(); ++i) outputs.push_back(tensor_json(graph, plan, layer.outputs[i], made[i]));
  for (size_t f = 0; f < layer.factors.size(); ++f) {
    const Axes axes = chosen.factor_axes.empty() ? Axes{} : chosen.factor_axes[f];
    factors.push_back(json_row("name", layer.factors[f].name, "size", layer.factors[f].size, "cuts",
                               plan.mesh.ways(axes), "axes", axes));
  }
  return json_row("name", layer.name, "type", layer.type, "stage", chosen.virtual_stage % plan.num_stages, "chunk",
                  chosen.virtual_stage / plan.num_stages, "strategy", std::move(strategy), "inputs", std::move(inputs),
                  "outputs", std::move(outputs), "factors", std::move(factors), "choice", to_string(chosen.choice),
                  "reason", chosen.reason, "would_be", chosen.cut_limit_reason, "recompute", chosen.recompute,
                  "parameters", count_parameters(graph, layer), "flops_per_step", count_json(flops));
}

/// Sets "fp8" of each layer to whether some program rounds its weight to 8 bits; returns the number of such layers.
size_t mark_narrow_layers(const Graph& graph, const RankClasses& classes, Json& layers) {
  std::set<std::string> weights;
  for (const Program& program : classes.programs)
    for (const Instruction& i : program.instructions)
      if (kernel_of(i) == &quantise_kernel) weights.insert(i.inputs[0].tensor);
  size_t marked = 0;
  for (size_t l = 0; l < graph.layers.size(); ++l) {
    const std::vector<TensorId>& inputs = graph.layers[l].inputs;
    const bool narrow = std::any_of(inputs.begin(), inputs.end(), [&](TensorId t) {
      const Tensor& tensor = graph.tensors[static_cast<size_t>(t)];
      return tensor.kind == TensorKind::parameter && weights.contains(tensor.name);
    });
    layers[l]["fp8"] = narrow;
    marked += narrow ? 1 : 0;
  }
  return marked;
}

Json schedule_json(const Plan& plan, const Pipeline& pipeline, const TaskTimes& times) {
  Json stages = Json::array();
  for (int s = 0; s < plan.num_stages; ++s) {
    Json tasks = Json::array();
    for (const Task& task : stage_tasks(pipeline, s)) tasks.push_back(to_string(task, plan.chunks));
    const auto of_stage = static_cast<size_t>(s);
    stages.push_back(
        {{"stage", s}, {"tasks", tasks}, {"starts", times.starts[of_stage]}, {"ends", times.ends[of_stage]}});
  }
  return stages;
}

Json memory_json(const Memory& m) {
  Json memory = {{"weights", m.weights}};
  if (m.master > 0) memory["master"] = m.master;
  memory["gradients"] = m.gradients;
  memory["optimizer"] = m.optimizer;
  memory["activations"] = m.activations;
  memory["buffers"] = m.buffers;
  if (m.workspace > 0) memory["workspace"] = m.workspace;
  if (m.validation > 0) memory["validation"] = m.validation;
  memory["total"] = m.total();
  if (m.host > 0) memory["host"] = m.host;
  if (m.data_set > 0) memory["data_set"] = m.data_set;
  if (m.unsent > 0) memory["unsent"] = m.unsent;
  if (m.copy_engines > 0) memory["copy_engines"] = m.copy_engines;
  return memory;
}

/// Returns the course of memory use over a step as at most kMostPoints points. Each point is the maximum over one of
/// the equal sections into which the list of instructions is divided.
Json memory_course_json(const std::vector<LiveBytes>& live) {
  constexpr size_t kMostPoints = 160;
  const size_t points = std::min(kMostPoints, live.size());
  std::vector<int64_t> activations(points), gradients(points), scratch(points);
  for (size_t i = 0; i < live.size(); ++i) {
    const size_t at = i * points / live.size();
    activations[at] = std::max(activations[at], live[i].activations);
    gradients[at] = std::max(gradients[at], live[i].gradients);
    scratch[at] = std::max(scratch[at], live[i].scratch);
  }
  return {{"activations", activations}, {"gradients", gradients}, {"scratch", scratch}};
}

/// Number of parameter elements of the whole network, each parameter counted once.
int64_t count_parameters(const Graph& graph, const Plan& plan) {
  int64_t count = 0;
  for (const VariablePlan& variable : plan.variables)
    if (const Tensor& tensor = graph.tensors[variable.tensor]; tensor.kind == TensorKind::parameter)
      count += num_elements(unpacked_shape(variable.global_shape, tensor.packing));
  return count;
}

/// Describes the parameter groups of optimizer.groups, followed by the parameters that belong to no group. Null if the
/// job has no groups.
Json parameter_groups_json(const JobSpec& spec, const Graph& graph) {
  const std::vector<ParameterGroup>& groups = spec.optimizer.groups;
  if (groups.empty() || graph.updates.empty()) return nullptr;
  Json rows = Json::array();
  for (int g = 0; g <= static_cast<int>(groups.size()); ++g) {
    const bool rest = g == static_cast<int>(groups.size());
    int64_t tensors = 0, elements = 0;
    for (const Update& update : graph.updates) {
      if (update.group != (rest ? -1 : g)) continue;
      ++tensors;
      elements += num_elements(graph.tensors[update.parameter].shape);
    }
    Json settings = Json::object();
    if (!rest)
      for (const auto& [name, value] : groups[static_cast<size_t>(g)].attrs) settings[name] = to_string(value);
    rows.push_back({{"patterns", rest ? std::vector<std::string>{} : groups[static_cast<size_t>(g)].patterns},
                    {"settings", settings},
                    {"learning_rate_scale", rest ? 1.0 : groups[static_cast<size_t>(g)].learning_rate_scale},
                    {"tensors", tensors},
                    {"parameters", elements}});
  }
  return rows;
}

/// Number of parameter elements with which a rank computes: its shard of the stage's parameters, before sharding by
/// optimizer_shard.
int64_t count_parameters(const Program& program) {
  if (program.server >= 0) return owned_elements(program);
  int64_t count = 0;
  for (const Variable& variable : program.variables)
    if (variable.kind == TensorKind::parameter) count += num_elements(unpacked_shape(variable.shape, variable.packing));
  return count;
}

Json class_json(const RankClasses& classes, size_t of_class, size_t calls) {
  const Program& program = classes.programs[of_class];
  Json row = {{"ranks", range_text(classes.ranks[of_class])},
              {"count", classes.ranks[of_class].size()},
              {"stage", program.stage},
              {"parameters", count_parameters(program)},
              {"flops_per_step", count_json(program_flops(program))},
              {"arena_bytes", program.arena_bytes},
              {"memory", memory_json(program.memory)},
              {"memory_course", memory_course_json(program.live)},
              {"instructions", program.instructions.size()},
              {"calls", calls}};
  if (program.server >= 0) row["server"] = program.server;
  return row;
}

}  // namespace

Json validation_rows(const RankClasses& validation) {
  Json rows = Json::array();
  for (size_t c = 0; c < validation.programs.size(); ++c) {
    const Program& program = validation.programs[c];
    const Memory& m = program.memory;
    Json memory = {{"activations", m.activations}, {"buffers", m.buffers}};
    if (m.workspace > 0) memory["workspace"] = m.workspace;
    rows.push_back({{"ranks", range_text(validation.ranks[c])},
                    {"stage", program.stage},
                    {"flops_per_batch", count_json(program_flops(program))},
                    {"memory", std::move(memory)},
                    {"instructions", program.instructions.size()}});
  }
  return rows;
}

/// Describes the plan as data x tensor x context x pipeline parallelism. Null if the plan is no such product.
static Json sizes_json(const Graph& graph, const Plan& plan) {
  const std::optional<ParallelSizes> sizes = parallel_sizes(graph, plan);
  if (!sizes) return nullptr;
  return {{"data", sizes->data},         {"tensor", sizes->tensor},   {"context", sizes->context},
          {"pipeline", sizes->pipeline}, {"copies", sizes->replicas}, {"sequence_parallel", sizes->sequence_parallel}};
}

/// Keeps one rank per class, because in asynchronous mode a step is the step of a single worker.
static RankClasses one_of_each(RankClasses classes) {
  for (std::vector<int>& ranks : classes.ranks) ranks.resize(1);
  return classes;
}

/// Facts of parameter servers, if there are any.
static void add_servers(Json& report, const JobSpec& spec, const Plan& plan, const RankClasses& classes) {
  if (plan.servers > 0) add_served(report, classes);
  if (serves_tables_alone(plan)) {
    report.erase("servers_beside_all_reduce");  // the workers do all_reduce
    report["tables_alone"] = {{"all_reduce", true}, {"staleness", spec.parallel.staleness}};
  }
  if (plan.is_asynchronous())
    report["asynchronous"] = {{"staleness", spec.parallel.staleness}, {"rebalance", spec.parallel.rebalance}};
}

/// The tokens that a step's exchanges send to experts, if there are any.
static void add_token_exchange(Json& report, const RankClasses& classes) {
  if (const TokenTraffic tokens = token_traffic_of_step(classes); tokens.most > 0) {
    report["token_exchange"] = {{"expected_bytes", tokens.expected}, {"most_bytes", tokens.most}};
    report["notes"].push_back(fmt::format("tokens that a step sends to experts and back: {} expected, at most {}",
                                          format_bytes(tokens.expected), format_bytes(tokens.most)));
  }
}

static void add_loss_scale(Json& report, const Fp16Spec& fp16) {
  report["loss_scale"] = {{"initial", fp16.initial_scale},
                          {"growth_factor", fp16.growth_factor},
                          {"backoff_factor", fp16.backoff_factor},
                          {"growth_interval", fp16.growth_interval},
                          {"min", fp16.min_scale}};
}

/// Describes the recipe of precision: fp8 in the notes of the plan.
static void add_fp8(Json& report, const Fp8Spec& fp8, size_t layers) {
  report["fp8"] = {{"recipe", to_string(fp8.recipe)}, {"layers", layers}};
  if (layers == 0) {
    report["notes"].push_back("precision is fp8, but fp8.layers and fp8.min_weight select no layer");
    return;
  }
  std::string scales;
  switch (fp8.recipe) {
    case Fp8Recipe::block:
      scales = "one scale per 128 elements, and per 128 x 128 of a weight; all factors are E4M3";
      break;
    case Fp8Recipe::tensor:
      scales = "one scale per tensor, from its largest magnitude on all ranks; gradients are E5M2";
      break;
    case Fp8Recipe::delayed:
      scales = fmt::format(
          "one scale per tensor, from the {} of its largest magnitudes in the last {} step{}, "
          "margin {}; gradients are E5M2",
          fp8.amax_compute_algo == AmaxAlgo::max ? "largest" : "most recent", fp8.amax_history_len,
          fp8.amax_history_len == 1 ? "" : "s", fp8.margin);
      report["fp8"].update({{"amax_history_len", fp8.amax_history_len},
                            {"amax_compute_algo", to_string(fp8.amax_compute_algo)},
                            {"margin", fp8.margin}});
      break;
  }
  report["notes"].push_back(
      fmt::format("fp8 recipe {}, {} layer{}: {}", to_string(fp8.recipe), layers, layers == 1 ? "" : "s", scales));
}

Json plan_report(const JobSpec& spec, const Graph& graph, const Plan& plan, const RankClasses& classes) {
  Json layers = Json::array(), of_classes = Json::array();
  const std::vector<double> flops = layer_flops(graph, plan);
  for (size_t i = 0; i < graph.layers.size(); ++i) layers.push_back(layer_json(graph, plan, i, flops[i]));
  const size_t narrow = spec.fp8 ? mark_narrow_layers(graph, classes, layers) : 0;
  Pipeline pipeline = plan.pipeline(graph.loss >= 0);
  if (plan.divides_micro_batches())  // the number of the rank that has the most micro-batches
    pipeline.micro_batches = *std::max_element(plan.rank_micro_batches.begin(), plan.rank_micro_batches.end());
  const TaskTimes times = task_times(pipeline);
  GroupTable table(classes);
  Json redistributions = redistributions_json(classes, table);
  std::vector<Json> calls;  // classes that differ only in kernels have the same calls
  for (size_t c = 0; c < classes.programs.size(); ++c) {
    Json of_class = calls_json(classes, c, table);
    const auto known = std::find(calls.begin(), calls.end(), of_class);
    of_classes.push_back(class_json(classes, c, static_cast<size_t>(known - calls.begin())));
    if (known == calls.end()) calls.push_back(std::move(of_class));
  }
  Json report = {{"job", spec.name},
                 {"mode", to_string(plan.mode)},
                 {"ranks", plan.is_asynchronous() ? plan.own_workers : plan.ranks * plan.replicas},
                 {"stages", plan.num_stages},
                 {"mesh", plan.mesh.axis_sizes()},
                 {"micro_batches", plan.micro_batches},
                 {"batch", spec.dataset.batch},
                 {"schedule", to_string(plan.schedule)},
                 {"chunks", plan.chunks},
                 {"precision", spec.fp8 ? "fp8" : to_string(spec.precision)},
                 {"gradient_precision", to_string(spec.gradient_precision)},
                 {"optimizer_shard_level", plan.optimizer_shard_level},
                 {"optimizer_shard_within_host", plan.shard_axes.has_value()},
                 {"parameters", count_parameters(graph, plan)},
                 {"flops_per_step", count_json(model_flops(graph, plan))},
                 {"layers", std::move(layers)},
                 {"tasks", schedule_json(plan, pipeline, times)},
                 {"bubble", times.bubble()},
                 {"groups", table.rows()},
                 {"redistributions", std::move(redistributions)},
                 {"communication",
                  plan.is_asynchronous() ? communication_totals(one_of_each(classes)) : communication_totals(classes)},
                 {"rank_classes", std::move(of_classes)},
                 {"calls", std::move(calls)},
                 {"notes", plan.notes},
                 {"sizes", sizes_json(graph, plan)}};
  for (const ExpertShare& share : expert_shares(graph, plan))
    report["experts_per_rank"].push_back({{"per_rank", share.per_rank}, {"all", share.all}});
  if (Json groups = parameter_groups_json(spec, graph); !groups.is_null())
    report["parameter_groups"] = std::move(groups);
  add_servers(report, spec, plan, classes);
  if (plan.divides_micro_batches()) report["rank_micro_batches"] = plan.rank_micro_batches;
  if (plan.hybrid()) report["local_shards"] = local_shards_report(graph, plan, spec.parallel.full_batch);
  add_token_exchange(report, classes);
  if (plan.numerics.optimizer.scales_loss && graph.trains()) add_loss_scale(report, *spec.fp16);
  if (spec.fp8) add_fp8(report, *spec.fp8, narrow);
  return report;
}

}  // namespace trainctl
