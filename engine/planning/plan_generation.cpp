// Plans text generation with the network of a job.
#include "engine/planning/plan_generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/round_up.h"
#include "engine/compile/compile.h"
#include "engine/planning/device_memory.h"
#include "engine/planning/plan_graph.h"
#include "engine/spec/error_positions.h"

namespace trainctl {
namespace {

constexpr int64_t kPrefillTokens =
    64;  ///< tokens of each prompt at a time: enough for large products, and little is left over

void require_generation(const JobSpec& spec) {
  const auto refuse = [&](const char* field, const std::string& why, const std::string& hint) {
    throw SpecError(spec.position(field), field, "text generation does not support " + why, hint);
  };
  if (spec.network.empty()) refuse("network", "a job without a network", "name a job that trains a language model");
  if (spec.parallel.mode == ParallelMode::hybrid_parallel)
    refuse("parallel.mode", "hybrid_parallel", "set parallel.mode=semi_auto_parallel on the command line");
  if (spec.parallel.mode == ParallelMode::auto_parallel)
    refuse("parallel.mode", "auto_parallel, which searches a plan for training",
           "set parallel.mode=data_parallel or semi_auto_parallel on the command line");
  if (!spec.parallel.tables.empty()) refuse("parallel.tables", "tables on servers", "remove parallel.tables");
}

/// The layer whose output the loss reads.
std::string logits_layer(const JobSpec& spec) {
  return spec.loss && !spec.loss->input.empty() ? spec.loss->input : spec.network.back().name;
}

/// The job without the fields that only training uses.
JobSpec network_of(JobSpec spec, const GenerationSize& size) {
  spec.dataset.batch = size.rows;
  spec.parallel.micro_batches = 1;
  spec.parallel.rank_micro_batches.clear();
  spec.launch.machines.clear();
  spec.loss.reset();
  spec.auxiliary_losses.clear();
  spec.metrics.clear();
  spec.validation.reset();
  spec.print = {};
  spec.train.histograms = spec.train.fingerprints = 0;
  // Tokens are generated one by one: the ranks that share rows in training share the batch.
  spec.parallel.data = 0;
  spec.parallel.context = 1;
  spec.parallel.context_method = ContextMethod::automatic;
  spec.parallel.expert_method = ExpertMethod::automatic;
  std::erase_if(spec.parallel.strategies, [](const StrategySpec& each) { return each.pattern == "loss"; });
  return spec;
}

}  // namespace

PlannedJob plan_generation(JobSpec spec, GenerationSize size, std::shared_ptr<const Machine> machine) {
  require_generation(spec);
  size.rows = round_up(size.rows, std::max(1, spec.launch.ranks / std::max(1, spec.parallel.stages)));
  size.positions = std::max<int64_t>(size.positions, 2);
  PlannedJob job;
  job.spec = network_of(spec, size);
  job.cost = CostModel(std::move(machine), spec.precision);
  job.data.shapes = {{{tokens_input(spec), {1}, true}}};
  job.data.samples = size.rows;
  PlannedGeneration generation{.size = size, .prefill_tokens = std::min(kPrefillTokens, size.positions)};
  try {
    job.graph = decode_graph(job.spec, size, logits_layer(spec));
    generation.prefill = prefill_graph(job.spec, size, generation.prefill_tokens);
    PlanMemo memo;
    plan_graph(job, memo);
  } catch (const SpecError& error) {
    throw with_positions(error, spec);
  }
  job.generation = std::move(generation);
  job.spec = std::move(spec);
  return job;
}

Program compile_prefill(const PlannedJob& job, int rank) {
  const EvaluationOf of{job.graph};
  return with_device_memory(job, compile(job.generation->prefill, job.plan, job.cost, rank, &of));
}

RankClasses compile_prefill_classes(const PlannedJob& job) {
  const EvaluationOf of{job.graph};
  RankClasses classes = compile_classes(job.generation->prefill, job.plan, job.cost, &of);
  for (Program& program : classes.programs) program = with_device_memory(job, std::move(program));
  return classes;
}

}  // namespace trainctl
