// Plans the graph of a job in which every choice is fixed.
#include "engine/planning/plan_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/compile/lower/packed_states.h"
#include "engine/compile/parameter_optimizer.h"
#include "engine/plan/outdated.h"
#include "engine/planning/context_memory.h"
#include "engine/planning/head_pieces.h"
#include "engine/planning/machine_file.h"
#include "engine/planning/repeated_collectives.h"

namespace trainctl {
namespace {

/// Throws SpecError if a job with asynchronous servers saves its state but has state on the workers: the servers save
/// between updates, and do not save the state of workers.
void check_saves(const PlannedJob& job) {
  if (!job.plan.is_asynchronous() || !job.spec.train.saves_state()) return;
  for (const Tensor& tensor : job.graph.tensors)
    if (tensor.kind == TensorKind::state)
      throw SpecError(job.spec.position("train.checkpoint"), "train.checkpoint",
                      "each asynchronous worker has its own " + tensor.name + ", which checkpoints do not contain",
                      "set parallel.sync: true, or remove checkpoint");
}

/// Throws SpecError for a parameter that the plan cuts, but whose update needs all of it.
void require_whole_parameters(const PlannedJob& job) {
  const OptimizerSpec& spec = job.spec.optimizer;
  if (job.graph.loss < 0) return;
  for (const Update& update : job.graph.updates) {
    if (update.gradients.empty()) continue;
    const bool companion = uses_companion(job.graph, spec, update.parameter, update.group);
    const bool clips = spec.clip_parameter_norm > 0;
    if (!clips && !optimizer_of(spec, update.group, companion).needs_whole_parameters()) continue;
    const Layout& layout = job.plan.variable(update.parameter).layout;
    if (std::all_of(layout.dims.begin(), layout.dims.end(), [](const Axes& axes) { return axes.empty(); })) continue;
    const std::string field = clips ? "optimizer.clip_parameter_norm" : "optimizer.type";
    throw SpecError(job.spec.position(field), field,
                    (clips ? "clip_parameter_norm" : spec.type) + " needs whole parameters, but the plan cuts " +
                        job.graph.tensors[static_cast<size_t>(update.parameter)].name,
                    fmt::format("cut only the batch (parallel.mode: data_parallel), or {}",
                                clips ? "use clip_norm" : "choose adamw"));
  }
}

/// Throws SpecError for a parameter whose shards are not blocks of its elements (optimizer.state_type: int8).
void require_whole_blocks(const PlannedJob& job) {
  const OptimizerSpec& spec = job.spec.optimizer;
  if (spec.state_type != StateType::int8 || job.graph.loss < 0) return;
  for (const Update& update : job.graph.updates) {
    const Tensor& tensor = job.graph.tensors[static_cast<size_t>(update.parameter)];
    const Layout& layout = job.plan.variable(update.parameter).layout;
    if (update.gradients.empty() || !keeps_codes(spec, tensor.shape) ||
        has_whole_blocks(layout, job.plan.mesh, tensor.shape))
      continue;
    throw SpecError(job.spec.position("optimizer.state_type"), "optimizer.state_type",
                    "int8 keeps states in blocks of 256 elements, but the plan cuts " + tensor.name + " " +
                        to_string(tensor.shape) + " within blocks",
                    "set state_type: bf16, or cut only rows whose elements per rank are a multiple of 256");
  }
}

std::string speeds_note(const JobSpec& spec, const std::vector<double>& speeds) {
  std::vector<std::string> texts;
  for (const double speed : speeds) texts.push_back(fmt::format("{:.2g}", speed));
  return fmt::format(
      "launch.machine: stages have the speeds {} relative to the fastest machine{}; the predicted step assumes {} for "
      "all",
      join(texts), spec.parallel.stage_config.empty() ? ", and layers in proportion" : "", spec.launch.machine);
}

std::string precision_note(const JobSpec& spec) {
  constexpr const char* kSlower = "compute on fp32 copies, which is slower than precision: fp32";
  if (spec.fp8)
    return fmt::format("precision is fp8: CPU ranks round to the same 8-bit and bf16 numbers as GPUs, but {}", kSlower);
  const char* const type = spec.precision == Precision::fp16 ? "fp16" : "bf16";
  return fmt::format("precision is {0}: CPU ranks store {0} and {1}", type, kSlower);
}

}  // namespace

void plan_graph(PlannedJob& job, PlanMemo& memo) {
  const std::vector<std::string> notes = leave_out_outdated(job.spec, job.graph);
  memo.stage_speeds = stage_speeds(job.spec);
  job.plan = make_plan(job.graph, job.spec, job.cost, memo);
  if (!memo.stage_speeds.empty()) job.plan.notes.push_back(speeds_note(job.spec, memo.stage_speeds));
  require_whole_parameters(job);
  require_whole_blocks(job);
  fit_context_method(job, memo);
  job.plan.notes.insert(job.plan.notes.begin(), notes.begin(), notes.end());
  if (job.spec.launch.device == Device::cpu && is_half(job.plan.compute_type()))
    job.plan.notes.push_back(precision_note(job.spec));
  for (ServedTable& table : job.tables) job.plan.tables.push_back(find_table(job.graph, table));
  check_saves(job);
  repeat_collectives_to_fit(job);
  choose_head_pieces(job);
}

}  // namespace trainctl
