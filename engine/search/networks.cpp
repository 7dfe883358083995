// Builds the graph of a job's folded network once per number of micro-batches, with facts for every plan.
#include "engine/search/networks.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "engine/base/text.h"
#include "engine/plan/axes/size_strategies.h"
#include "engine/plan/stages/recompute.h"
#include "engine/plan/stages/stages.h"
#include "engine/plan/traffic/context_method.h"

namespace trainctl {
namespace {

constexpr int kBlocks = 3;  ///< the folded network keeps the first block, the last, and one that represents the rest

}  // namespace

SearchNetwork::SearchNetwork(Folded from, const DataShapes& data, const CostModel& its_cost)
    : cost(its_cost),
      folded(std::move(from)),
      graph(build_graph(folded.job, data)),
      facts(sharding_facts(graph)),
      units(find_units(graph)) {
  cuts.emplace(graph, facts, units, folded);
  const std::vector<bool> leaves = outputs_of_blocks(graph);
  for (size_t l = 0; l < leaves.size(); ++l)
    if (leaves[l]) leaves_block.insert(cuts->patterns[l]);
  least = least_work(*cuts, folded.job, cost.machine());
  const std::vector<double> seconds = node_seconds(graph, cost);
  for (size_t n = 0; n < seconds.size(); ++n) {
    if (units.all[static_cast<size_t>(units.of_node[n])].finishes()) continue;
    const double times = cuts->times[static_cast<size_t>(graph.nodes[n].layer)];
    kernel_seconds += times * seconds[n];
    launch_seconds += times * cost.machine().launch.value;
  }
}

std::vector<std::optional<LayerStrategy>> SearchNetwork::strategies(const Mesh& mesh, int stages,
                                                                    std::vector<Diagnostic>& errors) const {
  JobSpec job = folded.job;
  job.parallel.stages = stages;
  job.parallel.mode = ParallelMode::semi_auto_parallel;
  std::vector<std::optional<LayerStrategy>> all = read_strategies(graph, facts, job, mesh, errors);
  if (!job.parallel.has_sizes()) return all;
  const ParallelSpec& parallel = job.parallel;
  const int shared = parallel.tensor * parallel.context;
  if (mesh.size() % shared != 0 || (parallel.data > 0 && mesh.size() != parallel.data * shared)) {
    errors.push_back(
        {job.position("parallel"), "parallel",
         fmt::format("data, tensor and context do not make up the {} of a stage", plural(mesh.size(), "rank")),
         "set parallel.stages, or omit data"});
    return all;
  }
  const ContextMethod method = choose_context_method(parallel, context_method_costs(graph, parallel, mesh, cost));
  add_size_strategies(graph, facts, job, mesh, method, all, errors);
  return all;
}

Networks::Networks(const JobSpec& job, const DataShapes& data, const CostModel& cost)
    : job_(job), data_(data), cost_(cost), repeats_(find_repeats(job)), folded_(fold(job, kBlocks)) {}

std::shared_ptr<const SearchNetwork> Networks::of(int micro_batches) {
  std::shared_ptr<const SearchNetwork>& known = known_[micro_batches];
  if (known) return known;
  Folded folded = folded_;
  folded.job.parallel.micro_batches = micro_batches;
  try {
    known = std::make_shared<const SearchNetwork>(std::move(folded), data_, cost_);
  } catch (const SpecError&) {
    if (!folded_.is_folded()) throw;
    folded_ = fold(job_, std::numeric_limits<int>::max());  // the job names a layer of a block that was left out
    return of(micro_batches);
  }
  return known;
}

}  // namespace trainctl
