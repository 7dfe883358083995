// Plans a job: makes its graph, its plan and its verified programs.
#include "engine/planning/plan_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/text.h"
#include "engine/model/evaluation.h"
#include "engine/model/model.h"
#include "engine/ops/moe/expert_load.h"
#include "engine/plan/outdated.h"
#include "engine/planning/compile_job.h"
#include "engine/planning/plan_graph.h"
#include "engine/planning/plugin_devices.h"
#include "engine/planning/run_length.h"
#include "engine/planning/search_plan.h"
#include "engine/planning/trials.h"
#include "engine/planning/unequal_ranks.h"
#include "engine/spec/error_positions.h"
#include "engine/spec/replicas.h"

namespace trainctl {
namespace {

/// Throws SpecError if an evaluation has to fill up its last batch and the added rows would change the result. This is
/// so if results of a row depend on other rows, or if something other than the loss reads labels, which the added rows
/// do not have.
void check_filled_batch(const PlannedJob& job, const PlannedEvaluation& evaluation) {
  if (evaluation.data.samples % job.spec.dataset.batch == 0) return;
  const std::string remedy =
      fmt::format("use a number of samples that is divisible by dataset.batch {}, or a batch that divides {}",
                  job.spec.dataset.batch, evaluation.data.samples);
  if (const LayerId layer = mixes_rows(evaluation.graph); layer >= 0)
    throw SpecError({}, "validation",
                    fmt::format("the last batch of {} samples must be padded, but {} computes over all rows of a batch",
                                evaluation.data.samples, evaluation.graph.layers[static_cast<size_t>(layer)].name),
                    remedy);
  if (const LayerId layer = reads_label(evaluation.graph); layer >= 0)
    throw SpecError({}, "validation",
                    fmt::format("the last batch of {} samples must be padded with samples without labels, but {} "
                                "reads the label",
                                evaluation.data.samples, evaluation.graph.layers[static_cast<size_t>(layer)].name),
                    remedy);
}

/// "[28, 28, 1]", or "image [3, 224, 224] of f32, label [] of i32".
std::string in_words(const DataShapes& shapes) {
  if (shapes.fields.size() == 2 && shapes.fields[0].name == "data") return to_string(shapes.fields[0].shape);
  std::vector<std::string> fields;
  for (const DataField& field : shapes.fields)
    fields.push_back(fmt::format("{} {} of {}", field.name, to_string(field.shape), field.is_integer ? "i32" : "f32"));
  return join(fields);
}

PlannedEvaluation plan_validation(const PlannedJob& job, DataHeader data) {
  PlannedEvaluation evaluation;
  evaluation.set = job.spec.validation_set();
  evaluation.data = std::move(data);
  if (evaluation.data.shapes != job.data.shapes)
    throw SpecError({}, "validation.dataset",
                    fmt::format("the samples are {}, but those of the training set are {}",
                                in_words(evaluation.data.shapes), in_words(job.data.shapes)),
                    "use dataset.transforms: {resize: [h, w]} for equal shapes");
  evaluation.graph = evaluation_graph(job.graph);
  check_filled_batch(job, evaluation);
  return evaluation;
}

/// Takes over the plan and the programs that the search has compiled, if the plan that was found is exactly the one
/// that was tried. Returns whether it did.
bool take_trial(PlannedJob& job) {
  if (!job.search || !job.tables.empty()) return false;
  Trial& trial = job.search->tried.front().trial;
  const std::shared_ptr<const CompiledTrial> compiled = std::move(trial.compiled);
  // If the plan exceeds the memory limit, the head will be made in pieces, so the programs of the trial cannot be used.
  if (!compiled || !trial.fits(job.spec.parallel.max_memory)) return false;
  leave_out_outdated(job.spec, job.graph);  // the plan has its notes
  job.plan = compiled->plan;
  explain_strategies(job.graph, job.spec, job.plan);
  job.compiled = compiled;
  return true;
}

/// Plans the job, except for the checks of the length of the run. With parallel.local_steps, `job` describes one
/// replica.
void plan_steps(PlannedJob& job, std::optional<DataHeader> validation) {
  const std::string division = divide_by_speed(job.spec), level = exchange_once_per_step(job.spec);
  Trials::KnownGraph known = search_plan(job);
  job.tables = plan_tables(job.spec, job.data.shapes);
  if (!job.tables.empty()) known = {};  // a different graph than those that were tried
  if (!known.graph)
    known.graph = build_graph(job.tables.empty() ? job.spec : with_windows(job.spec, job.tables), job.data.shapes);
  job.graph = std::move(*known.graph);
  require_independent_micro_batches(job);
  if (!take_trial(job)) plan_graph(job, known.memo);
  for (const std::string& note : {division, level})
    if (!note.empty()) job.plan.notes.push_back(note);
  if (!job.spec.validation) return;
  check(validation.has_value(), "a job with a validation is planned with the header of its data set");
  try {
    job.validation = plan_validation(job, std::move(*validation));
  } catch (const SpecError& error) {
    throw with_validation_positions(error, job.spec);
  }
}

/// Throws SpecError if a job with replicas validates between two synchronizations: the replicas then have different
/// running statistics, so their validations would differ.
void require_shared_statistics(const PlannedJob& job) {
  if (!job.validation) return;
  const auto state = std::find_if(job.graph.tensors.begin(), job.graph.tensors.end(), [](const Tensor& tensor) {
    return tensor.kind == TensorKind::state && !tensor.is_cache && !is_expert_load(tensor.name);  // of a step only
  });
  if (state == job.graph.tensors.end()) return;
  const ValidationSpec& spec = *job.spec.validation;
  const int64_t local = job.spec.parallel.local_steps;
  const auto require = [&](const char* field, int64_t steps) {
    if (steps % local != 0)
      throw SpecError(job.spec.position(field), field,
                      fmt::format("validates after {} steps, but each replica has its own {} until they synchronize, "
                                  "every {} steps",
                                  steps, state->name, local),
                      fmt::format("validate after a multiple of parallel.local_steps: {}", local));
  };
  require("validation.every_steps", spec.every_steps);
  require("validation.every_epochs", spec.every_epochs * steps_per_epoch(job.spec.dataset, job.data.samples));
}

std::string replicas_note(const PlannedJob& job) {
  int64_t elements = 0;
  for (const Update& update : job.graph.updates)
    if (!update.gradients.empty()) elements += num_elements(job.plan.variable(update.parameter).global_shape);
  const ParallelSpec& parallel = job.spec.parallel;
  const int64_t of_gradients = elements * byte_size(DType::f32),
                bytes = parallel.outer.precision == Precision::bf16 ? of_gradients / 2 : of_gradients,
                steps = total_steps(job.spec.train, steps_per_epoch(job.spec.dataset, job.data.samples)),
                rounds = rounds_until(parallel, steps);
  const double of_run = static_cast<double>(bytes) * static_cast<double>(rounds), rate = local_rate_of(job.spec);
  return fmt::format(
      "local_steps: {} replicas of {} {} train on {} samples of each batch{}; after {} of {} steps each sends {} to "
      "synchronize the weights, {} per step, {:.0f} times fewer than gradients in every step",
      job.plan.replicas, job.plan.ranks, job.plan.ranks == 1 ? "rank" : "ranks",
      job.spec.dataset.batch / job.plan.replicas,
      rate == 1 ? "" : fmt::format(", with {:.3g} times the learning rate", rate), with_commas(rounds),
      with_commas(steps), format_bytes(bytes), format_bytes(static_cast<int64_t>(of_run / static_cast<double>(steps))),
      static_cast<double>(of_gradients) * static_cast<double>(steps) / std::max(of_run, 1.0));
}

}  // namespace

PlannedJob plan_job(JobSpec spec, PlanInputs inputs) {
  require_plugin_kernels(spec);
  PlannedJob job;
  job.spec = std::move(spec);
  job.cost = CostModel(std::move(inputs.machine), job.spec.precision);
  job.data = std::move(inputs.training);
  try {
    require_epoch(job.spec.dataset, job.data.samples);
    require_countable_steps(job.spec, job.data.samples);
    require_enough_samples(job.spec, job.data);
  } catch (const SpecError& error) {
    throw with_positions(error, job.spec);
  }
  if (job.spec.parallel.local_steps == 0) {
    plan_steps(job, std::move(inputs.validation));
    return job;
  }
  const JobSpec whole = job.spec;
  job.spec = spec_of_replica(whole);
  plan_steps(job, std::move(inputs.validation));
  job.spec.launch = whole.launch;
  job.spec.dataset.batch = whole.dataset.batch;
  require_shared_statistics(job);
  job.plan.notes.push_back(replicas_note(job));
  return job;
}

PlanInputs inputs_of(const PlannedJob& job) {
  PlanInputs inputs{job.data, {}, job.cost.shared_machine()};
  if (job.validation) inputs.validation = job.validation->data;
  return inputs;
}

void require_precision(const JobSpec& spec) {
  if (spec.precision != Precision::bf16 || spec.fp8 || spec.launch.device == Device::cuda) return;
  throw EnvError("precision is bf16, but CPU ranks compute in fp32; set precision: fp32, or launch.device: cuda");
}

}  // namespace trainctl
