// See the header.
#include "engine/planning/plan_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/text.h"
#include "engine/model/evaluation.h"
#include "engine/model/model.h"
#include "engine/plan/outdated.h"
#include "engine/planning/compile_job.h"
#include "engine/planning/exchanging_choice.h"
#include "engine/planning/plan_graph.h"
#include "engine/planning/plugin_devices.h"
#include "engine/planning/run_length.h"
#include "engine/planning/trials.h"
#include "engine/planning/unequal_ranks.h"
#include "engine/spec/error_positions.h"
#include "engine/spec/replicas.h"

namespace trainctl {
namespace {

/// Each sample counts once, also where the last batch has to be filled up: then no result may depend on other rows, and
/// nothing but the loss may read a label that is not there.
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

/// Puts the plan that was found in place of the job's mode. If its ranks share experts, the same plan with an exchange
/// of tokens is tried too.
Trials::KnownGraph take_choice(PlannedJob& job, JobSpec spec, FoundPlan found, int64_t memory, Trials& trials) {
  job.search = std::move(found);
  job.spec = with_choice(spec, job.search->best().choice);
  Trials::KnownGraph known = trials.take(job.spec);
  if (!known.graph) return known;
  const std::optional<PlanChoice> choice = exchanging_choice(*known.graph, job.search->best().choice);
  if (!choice) return known;
  JobSpec exchanging = with_choice(std::move(spec), *choice);
  Trials others(job);
  TriedPlan tried{job.search->best().name + "; tokens exchanged", *choice, 0, others.run(exchanging, TriedRanks::all)};
  const Trial& best = job.search->best().trial;
  if (!tried.trial.fits(memory) || tried.trial.seconds >= best.seconds) return known;
  job.search->tried.insert(job.search->tried.begin(), std::move(tried));
  job.spec = std::move(exchanging);
  return others.take(job.spec);
}

/// Candidates for offloading if no plan fits otherwise: each part that the job keeps on its devices, and then both.
std::vector<OffloadSpec> offload_ways(const JobSpec& spec, const Machine& machine) {
  if (machine.kind != DeviceKind::cuda || spec.servers() > 0) return {};
  const OffloadSpec& given = spec.parallel.offload;
  OffloadSpec optimizer = given, activations = given;
  optimizer.optimizer = StatePlace::host;
  if (given.activations.empty()) activations.activations.push_back({"*", "parallel.offload.activations"});
  OffloadSpec both = activations;
  both.optimizer = StatePlace::host;
  if (given.optimizer == StatePlace::host && !given.activations.empty()) return {};
  if (given.optimizer == StatePlace::host) return {activations};
  if (!given.activations.empty()) return {optimizer};
  return {optimizer, activations, both};
}

/// The fastest plan that fits with one of offload_ways(); both are tried only if neither alone is enough.
std::optional<Trials::KnownGraph> search_offloading(PlannedJob& job, const JobSpec& given,
                                                    const std::function<Trials::KnownGraph(const JobSpec&)>& search) {
  std::optional<Trials::KnownGraph> best;
  std::optional<FoundPlan> found;
  JobSpec spec;
  const std::vector<OffloadSpec> ways = offload_ways(given, job.cost.machine());
  for (size_t w = 0; w < ways.size() && (w < 2 || !best); ++w) {
    JobSpec offloading = given;
    offloading.parallel.offload = ways[w];
    try {
      Trials::KnownGraph known = search(offloading);
      if (best && job.search->best().trial.seconds >= found->best().trial.seconds) continue;
      best = std::move(known);
      found = std::exchange(job.search, std::nullopt);
      spec = job.spec;
    } catch (const SpecError&) {
    }
  }
  if (!best) return std::nullopt;
  job.search = std::move(found);
  job.spec = std::move(spec);
  return best;
}

/// Fixes what auto_parallel leaves open. Returns what is known of the graph then.
Trials::KnownGraph search_plan(PlannedJob& job) {
  ParallelSpec& parallel = job.spec.parallel;
  if (parallel.mode != ParallelMode::auto_parallel) return {};
  parallel.mode = ParallelMode::semi_auto_parallel;
  // Memory does not affect which cuts are chosen here; whether they fit is reported once everything is planned.
  const int64_t memory = parallel.search.algorithm == SearchAlgorithm::sharding_propagation ? 0 : memory_limit(job);
  const auto search = [&](const JobSpec& spec) {
    Trials trials(job);
    FoundPlan found = find_plan(spec, job.data.shapes, job.cost, memory, [&trials](JobSpec each, TriedRanks ranks) {
      return trials.run(std::move(each), ranks);
    });
    return take_choice(job, spec, std::move(found), memory, trials);
  };
  const JobSpec given = job.spec;
  try {
    return search(given);
  } catch (const SpecError&) {
    if (memory <= 0) throw;
    if (std::optional<Trials::KnownGraph> known = search_offloading(job, given, search)) return std::move(*known);
    throw;  // the first error names the job's own fields
  }
}

/// The plan and the programs of the search's trial, if the plan that was found is exactly what it tried.
bool take_trial(PlannedJob& job) {
  if (!job.search || !job.tables.empty()) return false;
  Trial& trial = job.search->tried.front().trial;
  const std::shared_ptr<const CompiledTrial> compiled = std::move(trial.compiled);
  // With a limit that it does not fit, the head is made in pieces.
  if (!compiled || !trial.fits(job.spec.parallel.max_memory)) return false;
  leave_out_outdated(job.spec, job.graph);  // the plan has its notes
  job.plan = compiled->plan;
  explain_strategies(job.graph, job.spec, job.plan);
  job.compiled = compiled;
  return true;
}

/// All but the checks of the run's length. With parallel.local_steps `job` is that of one replica.
void plan_steps(PlannedJob& job, std::optional<DataHeader> validation) {
  const std::string division = divide_by_speed(job.spec);
  Trials::KnownGraph known = search_plan(job);
  job.tables = plan_tables(job.spec, job.data.shapes);
  if (!job.tables.empty()) known = {};  // another graph than those that were tried
  if (!known.graph)
    known.graph = build_graph(job.tables.empty() ? job.spec : with_windows(job.spec, job.tables), job.data.shapes);
  job.graph = std::move(*known.graph);
  require_independent_micro_batches(job);
  if (!take_trial(job)) plan_graph(job, known.memo);
  if (!division.empty()) job.plan.notes.push_back(division);
  if (!job.spec.validation) return;
  check(validation.has_value(), "a job with a validation is planned with the header of its data set");
  try {
    job.validation = plan_validation(job, std::move(*validation));
  } catch (const SpecError& error) {
    throw with_validation_positions(error, job.spec);
  }
}

/// Between two synchronizations replicas have their own running statistics, so their validations would differ.
void require_shared_statistics(const PlannedJob& job) {
  if (!job.validation) return;
  const auto state = std::find_if(job.graph.tensors.begin(), job.graph.tensors.end(), [](const Tensor& tensor) {
    return tensor.kind == TensorKind::state && !tensor.is_cache;
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
  const int64_t bytes = elements * byte_size(DType::f32), local = job.plan.local_steps;
  int64_t rounds = 0;
  for (int64_t step = 1; step <= local; ++step) rounds += synchronizes_after(step, local) ? 1 : 0;
  return fmt::format(
      "local_steps: {} replicas of {} {} train on {} samples of each batch; every {} steps, and {} times in the first "
      "{}, each sends {} to synchronize the weights; {} per step after that",
      job.plan.replicas, job.plan.ranks, job.plan.ranks == 1 ? "rank" : "ranks",
      job.spec.dataset.batch / job.plan.replicas, local, rounds, local, format_bytes(bytes),
      format_bytes(bytes / local));
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
  if (spec.precision != Precision::bf16 || spec.launch.device == Device::cuda) return;
  throw EnvError(std::string("precision is ") + (spec.fp8 ? "fp8" : "bf16") +
                 ", but CPU ranks compute in fp32; set precision: fp32, or launch.device: cuda");
}

}  // namespace trainctl
