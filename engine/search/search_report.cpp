// Writes the report of a search: the best plan, the others, and why each of them lost.
#include "engine/search/search_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/base/text.h"

namespace trainctl {
namespace {

/// Writes a choice like the section `parallel` of a job.
nlohmann::ordered_json choice_report(const PlanChoice& choice) {
  nlohmann::ordered_json parallel = {{"stages", choice.stages},
                                     {"micro_batches", choice.micro_batches},
                                     {"schedule", to_string(choice.schedule)},
                                     {"chunks", choice.chunks},
                                     {"optimizer_shard_level", choice.optimizer_shard.level},
                                     {"within_host", choice.optimizer_shard.within_host},
                                     {"bucket_bytes", choice.bucket_bytes}};
  nlohmann::ordered_json patterns = nlohmann::ordered_json::array(), strategies = nlohmann::ordered_json::object();
  for (const RecomputeRule& rule : choice.recompute) patterns.push_back(rule.pattern);
  for (const StrategySpec& strategy : choice.strategies) strategies[strategy.pattern] = strategy.cuts;
  parallel["recompute"] = std::move(patterns);
  parallel["strategies"] = std::move(strategies);
  return parallel;
}

}  // namespace

std::string why_lost(const TriedPlan& plan, const TriedPlan& best, int64_t memory_limit) {
  const Trial& trial = plan.trial;
  if (!trial.fits(memory_limit))
    return fmt::format("needs {} more memory than is available", format_bytes(trial.memory - memory_limit));
  if (trial.seconds <= best.trial.seconds)
    return "is not simpler, and not faster by more than the error of the "
           "estimate";
  size_t most = 0;
  double more = 0;
  for (size_t p = 0; p < trial.parts.size(); ++p) {
    const double difference = trial.parts[p].second - best.trial.parts[p].second;
    if (difference <= more) continue;
    more = difference;
    most = p;
  }
  if (more <= 0) return "takes the same time";
  return fmt::format("{:.2f} ms more in {}", 1e3 * more, trial.parts[most].first);
}

nlohmann::ordered_json search_report(const FoundPlan& found) {
  nlohmann::ordered_json tried = nlohmann::ordered_json::array();
  for (const TriedPlan& plan : found.tried) {
    nlohmann::ordered_json row = {{"plan", plan.name}, {"choice", choice_report(plan.choice)}};
    if (plan.expected > 0) row["expected"] = plan.expected;
    if (!plan.trial.fault.empty()) {
      row["fault"] = plan.trial.fault;
    } else {
      row["seconds"] = plan.trial.seconds;
      row["memory"] = plan.trial.memory;
      row["in_full"] = plan.trial.in_full;
      for (const auto& [name, seconds] : plan.trial.parts)
        if (seconds > 0) row["parts"][name] = seconds;
      if (&plan != &found.best()) row["lost"] = why_lost(plan, found.best(), found.memory);
    }
    tried.push_back(std::move(row));
  }
  nlohmann::ordered_json reasons = nlohmann::ordered_json::array();
  for (const CutAlternative& other : found.next_best)
    reasons.push_back(
        {{"layers", other.pattern}, {"next_best", other.cuts}, {"seconds", other.seconds}, {"bytes", other.bytes}});
  return {{"weighed", found.weighed},  {"bound", found.bound}, {"gap", found.gap()},
          {"exact", found.exact},      {"notes", found.notes}, {"reasons", std::move(reasons)},
          {"tried", std::move(tried)}, {"not_shown", 0}};
}

}  // namespace trainctl
