// Leaves out the parts of a job file that do not fit the number of ranks or stages that the command line sets.
#include "engine/plan/outdated.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "engine/base/text.h"
#include "engine/plan/axes/strategies.h"
#include "engine/plan/mesh.h"
#include "engine/spec/fields.h"

namespace trainctl {
namespace {

/// "launch.ranks=6 parallel.stages=3"; empty: none of them is set on the command line.
std::string asked(const JobSpec& spec) {
  std::vector<std::string> fields;
  const auto add = [&](const char* field, int value) {
    if (spec.is_override(field)) fields.push_back(fmt::format("{}={}", field, value));
  };
  add("launch.ranks", spec.launch.ranks);
  add("parallel.stages", spec.parallel.stages);
  add("parallel.chunks", spec.parallel.chunks);
  return join(fields, " ");
}

/// True if the rules name each of the virtual stages, and no other stage.
bool fits(const std::vector<StageRule>& rules, int stages) {
  std::set<int> named;
  for (const StageRule& rule : rules) named.insert(rule.stage);
  return static_cast<int>(named.size()) == stages && *named.begin() == 0 && *named.rbegin() == stages - 1;
}

/// Returns the product of all cuts of the strategy: a number of ranks that can be divided in all of these ways.
int ranks_for(const StrategySpec& strategy) {
  int64_t ranks = 1;
  for (const Ints& cuts : strategy.cuts)
    for (int64_t cut : cuts) ranks = std::clamp<int64_t>(ranks * cut, 1, kMaxRanks);
  return static_cast<int>(ranks);
}

}  // namespace

std::vector<std::string> leave_out_outdated(JobSpec& spec, const Graph& graph) {
  std::vector<std::string> notes;
  ParallelSpec& parallel = spec.parallel;
  const std::string why = asked(spec);
  if (why.empty() || parallel.mode != ParallelMode::semi_auto_parallel || spec.launch.ranks % parallel.stages != 0)
    return notes;
  const int stages = parallel.stages * parallel.chunks;
  if (!parallel.stage_config.empty() && !spec.is_override("parallel.stage_config") &&
      !fits(parallel.stage_config, stages)) {
    parallel.stage_config.clear();
    notes.push_back(
        fmt::format("parallel.stage_config does not fit {}: it is ignored, and the layers are balanced over {} stages",
                    why, stages));
  }
  const Mesh mesh(spec.launch.ranks / parallel.stages);
  const std::vector<LayerFacts> facts = sharding_facts(graph);
  JobSpec alone = spec;
  alone.network.clear();  // The graph has the layers.
  const auto is_legal = [&](const StrategySpec& strategy, const Mesh& on) {
    alone.parallel.strategies = {strategy};
    std::vector<Diagnostic> errors;
    read_strategies(graph, facts, alone, on, errors);
    return errors.empty();
  };
  std::vector<std::string> left_out;
  std::erase_if(parallel.strategies, [&](const StrategySpec& strategy) {
    if (spec.is_override(strategy.path)) return false;
    // A strategy that is wrong for any number of ranks is an error.
    const bool outdated = !is_legal(strategy, mesh) && is_legal(strategy, Mesh(ranks_for(strategy)));
    if (outdated) left_out.push_back(strategy.pattern);
    return outdated;
  });
  if (!left_out.empty())
    notes.push_back(fmt::format("the strategies of {} do not fit {}: they are ignored, and trainctl chooses the cuts",
                                join(left_out), why));
  return notes;
}

}  // namespace trainctl
