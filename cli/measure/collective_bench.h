// Times collectives between processes started for this purpose, one per rank.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/collective.h"
#include "engine/runtime/measure/sampling.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

struct CollectiveRequest {
  std::vector<Collective> kinds;
  int ranks = 2;
  std::vector<int64_t> bytes;  ///< the larger of a rank's input and output, rounded to whole blocks
  Device device = Device::cpu;
  int samples = 30;
};

struct CollectiveResult {
  Collective kind = Collective::all_reduce;
  int ranks = 1;
  int64_t bytes = 0;
  std::string made_by;   ///< see CollectiveTimer
  Spread seconds;        ///< per call, on the slowest rank
  int64_t wrong = 0;     ///< wrong elements, over all ranks
  double copy_rate = 0;  ///< the limit in bytes per second, see CollectiveTimer

  double rate() const { return static_cast<double>(bytes) / seconds.median; }
  double bus_rate() const;
};

/// The collective of that name, e.g. "all_reduce"; nullopt: unknown name.
std::optional<Collective> find_collective(std::string_view name);
std::vector<std::string> collective_names();

/// Ordered by kind, then bytes. Forks, so call it while the process has one thread. Throws EnvError with the error
/// message of the first rank that failed.
std::vector<CollectiveResult> bench_collectives(const CollectiveRequest& request);

}  // namespace trainctl
