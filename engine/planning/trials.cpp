// Plans, compiles and simulates variants of a job for the search: other plans, fewer blocks and other batches.
#include "engine/planning/trials.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/compile/lower/buckets.h"
#include "engine/model/model.h"
#include "engine/planning/compile_job.h"
#include "engine/planning/plan_graph.h"

namespace trainctl {
namespace {

/// Returns a key of all settings that a search changes and on which the graph depends.
std::string key_of(const JobSpec& spec) {
  const ParallelSpec& parallel = spec.parallel;
  std::string key = fmt::format("{} {} {} {}", spec.dataset.batch, parallel.micro_batches, parallel.context,
                                static_cast<int>(parallel.context_method));
  for (const LayerSpec& layer : spec.network) key.append(" ").append(layer.name);
  return key;
}

/// Returns a key of all other settings that a search changes and on which a plan depends, except the size of buckets.
std::string key_but_buckets(const ParallelSpec& parallel, TriedRanks ranks) {
  std::string key = fmt::format("{} {} {} {} {} {}", static_cast<int>(ranks), parallel.stages, parallel.chunks,
                                static_cast<int>(parallel.schedule), parallel.optimizer_shard.level,
                                parallel.optimizer_shard.within_host);
  key += fmt::format(" {} {} {}", parallel.data, parallel.tensor, static_cast<int>(parallel.offload.optimizer));
  for (const OffloadRule& rule : parallel.offload.activations) key.append(" ").append(rule.pattern);
  key += ";";
  for (const StageRule& rule : parallel.stage_config) key += fmt::format(" {}:{}", rule.pattern, rule.stage);
  for (const RecomputeRule& rule : parallel.recompute) key.append(" ").append(rule.pattern);
  for (const StrategySpec& strategy : parallel.strategies) {
    key.append(" ").append(strategy.pattern);
    for (const Ints& cuts : strategy.cuts) key += format_list(cuts);
  }
  return key;
}

/// True if nothing changes with this size of the largest bucket.
bool has_same_buckets(const Graph& graph, Plan plan, int64_t bucket_bytes) {
  const std::vector<BucketPlan> own = plan_buckets(graph, plan);
  plan.bucket_bytes = bucket_bytes;
  const std::vector<BucketPlan> others = plan_buckets(graph, plan);
  const auto has_same_parameters = [](const BucketPlan& a, const BucketPlan& b) {
    return std::equal(a.parameters.begin(), a.parameters.end(), b.parameters.begin(), b.parameters.end(),
                      [](const auto& one, const auto& other) { return one.tensor == other.tensor; });
  };
  return std::equal(own.begin(), own.end(), others.begin(), others.end(), has_same_parameters);
}

}  // namespace

Trial Trials::run(JobSpec spec, TriedRanks ranks) {
  PlannedJob fixed;
  fixed.spec = std::move(spec);
  fixed.spec.parallel.max_memory = 0;  // the search compares; the head is made in pieces once a plan is chosen
  fixed.data = job_.data;
  fixed.cost = job_.cost;
  KnownGraph& known = graphs_[key_of(fixed.spec)];
  known.memo.explains = ranks == TriedRanks::all;  // only the chosen plan is tried with all ranks
  Trial trial;
  try {
    const int64_t given = fixed.spec.parallel.bucket_bytes;
    std::vector<OtherBuckets>& others = known.others[key_but_buckets(fixed.spec.parallel, ranks)];
    const auto known_trial =
        std::find_if(others.begin(), others.end(), [&](const OtherBuckets& other) { return other.given == given; });
    if (known_trial != others.end()) return known_trial->trial;
    if (!known.graph) known.graph = build_graph(fixed.spec, fixed.data.shapes);
    fixed.graph = std::move(*known.graph);
    plan_graph(fixed, known.memo);
    const auto same = std::find_if(others.begin(), others.end(), [&](const OtherBuckets& other) {
      return has_same_buckets(fixed.graph, fixed.plan, other.bucket_bytes);
    });
    trial = same != others.end() ? same->trial : simulated(fixed, ranks);
    others.push_back({given, fixed.plan.bucket_bytes, trial});
    others.back().trial.compiled = nullptr;  // programs take much memory
  } catch (const SpecError& error) {
    trial.fault = error.diagnostics().front().message;
  }
  if (known.graph) *known.graph = std::move(fixed.graph);
  return trial;
}

const Graph* Trials::graph_of(const JobSpec& spec) const {
  const auto known = graphs_.find(key_of(spec));
  return known == graphs_.end() || !known->second.graph ? nullptr : &*known->second.graph;
}

Trials::KnownGraph Trials::take(const JobSpec& spec) {
  auto taken = graphs_.extract(key_of(spec));
  if (taken.empty()) return {};
  KnownGraph known = std::move(taken.mapped());
  known.memo.explains = true;
  return known;
}

Trial Trials::simulated(PlannedJob& fixed, TriedRanks ranks) const {
  Trial trial;
  auto compiled = std::make_shared<CompiledTrial>();
  RankClasses& classes = compiled->classes;
  const bool all = ranks == TriedRanks::all;
  classes = all ? compile_unverified(fixed) : compile_one_per_stage(fixed);
  const Simulation& step = compiled->step = simulate(classes, job_.cost.machine(), all);
  if (!step.ends) {
    trial.fault = "its stages would deadlock";
    return trial;
  }
  trial.seconds = step.step.value;
  trial.memory = most_memory(classes);
  for (size_t p = 0; p < kParts; ++p) trial.parts.emplace_back(to_string(static_cast<Part>(p)), step.parts[p].value);
  for (Part part : {Part::gradients, Part::weights})
    trial.bucket_seconds += step.parts[static_cast<size_t>(part)].value;
  trial.of_all_ranks = all;
  if (all) {
    compiled->plan = fixed.plan;
    trial.compiled = std::move(compiled);
  }
  return trial;
}

}  // namespace trainctl
