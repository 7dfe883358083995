// The graph of a job's folded network (repeats.h) for each number of micro-batches, and facts about it that hold for
// every plan.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/model/model.h"
#include "engine/plan/axes/sharding_facts.h"
#include "engine/plan/axes/strategies.h"
#include "engine/plan/axes/units.h"
#include "engine/search/bound.h"
#include "engine/search/cuts/cut_search.h"
#include "engine/search/cuts/repeats.h"

namespace trainctl {

struct SearchNetwork {
  const CostModel& cost;  ///< must outlive the network
  Folded folded;
  Graph graph;
  std::vector<LayerFacts> facts;
  Units units;
  std::optional<CutNetwork> cuts;
  std::set<std::string> leaves_block;  ///< patterns of layers whose outputs recompute keeps (outputs_of_blocks)
  LeastWork least;
  double kernel_seconds = 0;  ///< estimated seconds of all kernels of a micro-batch on one rank
  double launch_seconds = 0;  ///< seconds of starting them

  SearchNetwork(Folded folded, const DataShapes& data, const CostModel& its_cost);
  SearchNetwork(const SearchNetwork&) = delete;

  /// Strategies of the graph's layers in a stage of this mesh. Errors are added to `errors`; the result must then not
  /// be used.
  std::vector<std::optional<LayerStrategy>> strategies(const Mesh& mesh, int stages,
                                                       std::vector<Diagnostic>& errors) const;
};

class Networks {
 public:
  Networks(const JobSpec& job, const DataShapes& data, const CostModel& cost);

  /// Repeats of the whole network.
  const Repeats& repeats() const { return repeats_; }
  std::shared_ptr<const SearchNetwork> of(int micro_batches);

 private:
  const JobSpec& job_;
  const DataShapes& data_;
  const CostModel& cost_;
  const Repeats repeats_;
  Folded folded_;
  std::map<int, std::shared_ptr<const SearchNetwork>> known_;
};

}  // namespace trainctl
