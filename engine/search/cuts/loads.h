// The work and the memory of each layer on a rank, if the layers are cut in a given way. step_sum.h adds them up to
// stages, for choices that leave the cuts as they are.
#pragma once

#include <string>
#include <vector>

#include "engine/plan/traffic/cost_model.h"
#include "engine/search/cuts/cut_search.h"

namespace trainctl {

/// Load of one layer of the whole network.
struct LayerLoad {
  std::string name;
  double seconds = 0;          ///< seconds per micro-batch
  double forward_seconds = 0;  ///< the part that recompute would repeat
  double kept_bytes = 0;       ///< kept bytes per micro-batch
  bool is_offloaded = false;   ///< its kept tensors wait for the backward pass in the memory of the host
  double made_bytes = 0;       ///< bytes of its output, per micro-batch
  double elements = 0;         ///< elements of its trained parameters on a rank
  double frozen_elements = 0;  ///< elements of its frozen parameters, without packed ones
  double packed_bytes = 0;     ///< bytes of its packed parameters
  /// Ranks over which optimizer_shard cuts its trained parameters.
  struct Shards {
    double ways = 1;            ///< number of ranks that hold the same parameters
    double gather_seconds = 0;  ///< seconds to gather its weights once
  };
  Shards of_all, of_host;  ///< over all such ranks; over those of one host (optimizer_shard.within_host)
};

/// The layers of the whole network with their adapters, the loss last. `within_host`: axes_within_hosts.
std::vector<LayerLoad> loads_of(const CutNetwork& network, const JobSpec& whole, const Repeats& repeats,
                                const Mesh& mesh, const FoundCuts& cuts, const CostModel& cost,
                                const Axes& within_host);

}  // namespace trainctl
