// The ways to cut all layers that a search weighs on the ranks of one stage.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/search/cuts/loads.h"
#include "engine/search/networks.h"

namespace trainctl {

/// Well-known plans always compete.
enum class KnownAs : uint8_t { nothing, data_parallel, tensor_parallel, whole };

/// Cuts of a network on the ranks of one stage.
struct CutChoice {
  std::string name;  ///< "data parallel on 8 ranks"
  KnownAs known_as = KnownAs::nothing;
  std::shared_ptr<const Network> network;
  Mesh mesh;
  FoundCuts cuts;
};

/// Refers to what it is given.
class CutChoices {
 public:
  CutChoices(const JobSpec& job, Networks& networks, const CostModel& cost, const WeightBytes& bytes)
      : job_(job), networks_(networks), cost_(cost), bytes_(bytes) {}

  /// The named ones, and the best of each way to split the mesh. `seconds_per_byte` is the price of memory; with one,
  /// the named ones are left out. `illegal`: replaced by why the job's strategies are not legal here; then there are
  /// none.
  std::vector<std::shared_ptr<const CutChoice>> of(int stages, int micro_batches, double seconds_per_byte,
                                                   std::vector<Diagnostic>& illegal);

  /// Many of all there are: those that take least time, and those that do if memory has a price. By it as many bytes as
  /// `memory` count a tenth of what the first of them differ by, as much and ten times as much.
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
