// A planned job: the starting point of every command. Every rank computes the same one on its own.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/compile/rank_classes.h"
#include "engine/estimate/simulate.h"
#include "engine/graph/graph.h"
#include "engine/model/generation.h"
#include "engine/plan/plan.h"
#include "engine/plan/traffic/cost_model.h"
#include "engine/planning/data_header.h"
#include "engine/planning/served_tables.h"
#include "engine/search/find_plan.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// Samples that are evaluated, during the training or by themselves.
struct PlannedEvaluation {
  DatasetSpec set;
  DataHeader data;
  Graph graph;  ///< graph of the evaluation; PlannedJob::plan applies to it too
};

/// Text generation. PlannedJob::graph reads one token of each text.
struct PlannedGeneration {
  GenerationSize size;
  int64_t prefill_tokens = 1;  ///< tokens of each prompt that `prefill` reads at a time
  Graph prefill;               ///< graph that reads prompts; PlannedJob::plan applies to it too
};

/// A plan that the search has planned, compiled and simulated.
struct CompiledTrial {
  Plan plan;
  RankClasses classes;  ///< not verified
  Simulation step;
};

struct PlannedJob {
  JobSpec spec;
  DataHeader data;
  Graph graph;
  Plan plan;
  CostModel cost;
  std::vector<ServedTable> tables;  ///< tables of asynchronous parameter servers; the graph has a window of each
  std::optional<PlannedEvaluation> validation;  ///< evaluation for `validation:`
  std::optional<PlannedGeneration> generation;  ///< the job generates text; it does not train
  /// Result of auto_parallel; `spec` is the job with all its choices fixed.
  std::optional<FoundPlan> search;
  /// The search's trial of this very plan; null: compile_classes compiles it.
  std::shared_ptr<const CompiledTrial> compiled;
};

/// The numbers that a training step reports besides the loss: Program::metrics.
inline size_t num_metrics(const PlannedJob& job) {
  const OptimizerSpec& optimizer = job.plan.numerics.optimizer;
  if (!job.graph.trains() || !optimizer.skips_not_finite) return job.graph.metrics.size();
  return job.graph.metrics.size() + (optimizer.scales_loss && optimizer.on_spike ? 2 : 1);
}

}  // namespace trainctl
