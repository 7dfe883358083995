// The ways to cut all layers that a search weighs on the ranks of one stage.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/search/cuts/step_sum.h"
#include "engine/search/networks.h"

namespace trainctl {

/// Well-known plans always compete.
enum class KnownAs : uint8_t { nothing, data_parallel, tensor_parallel, whole };

/// Cuts of a network on the ranks of one stage.
struct CutChoice {
  std::string name;  ///< "data parallel on 8 ranks"
  KnownAs known_as = KnownAs::nothing;
  std::shared_ptr<const SearchNetwork> network;
  Mesh mesh;
  FoundCuts cuts;
};

/// The arguments of the constructor must outlive the object, which refers to them.
class CutChoices {
 public:
  CutChoices(const JobSpec& job, Networks& networks, const CostModel& cost, const WeightBytes& bytes)
      : job_(job), networks_(networks), cost_(cost), bytes_(bytes) {}

  /// Returns the well-known cuts (KnownAs), and the best for each way to split the mesh. `seconds_per_byte` is the
  /// price of memory; with one, the well-known ones are left out. If the job's strategies are not legal here, returns
  /// none and sets `illegal` to the reasons.
  std::vector<std::shared_ptr<const CutChoice>> of(int stages, int micro_batches, double seconds_per_byte,
                                                   std::vector<Diagnostic>& illegal);

  /// Returns many cuts: those with the least time, and those with the least time plus price of memory, for three
  /// prices. At these prices `memory` bytes cost 0.1, 1 and 10 times the difference in time between the best and the
  /// last of the cuts with the least time.
  std::vector<std::shared_ptr<const CutChoice>> many(int stages, int micro_batches, double memory);

 private:
  BytesPerWeight bytes_per_weight() const {
    return {.trained = bytes_.weight + bytes_.master + bytes_.gradient + bytes_.optimizer, .frozen = bytes_.weight};
  }
  AxisSplit within_hosts(const Mesh& mesh) const;

  const JobSpec& job_;
  Networks& networks_;
  const CostModel& cost_;
  const WeightBytes& bytes_;
  std::map<std::pair<int, std::vector<FactorAxes>>, size_t> numbers_;  ///< in names of cuts: by ranks and layers
};

}  // namespace trainctl
