// Times collectives between processes that are made for it, one a rank.
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
  std::vector<int64_t> bytes;  ///< the larger of what a rank puts in and gets out, rounded to whole blocks
  Device device = Device::cpu;
  int samples = 30;
};

struct CollectiveResult {
  Collective kind = Collective::all_reduce;
  int ranks = 1;
  int64_t bytes = 0;
  std::string made_by;   ///< as CollectiveTimer says
  Spread seconds;        ///< a call, of the rank that took longest
  int64_t wrong = 0;     ///< elements, over all ranks
  double copy_rate = 0;  ///< bytes a second: the limit, see CollectiveTimer

  double rate() const { return static_cast<double>(bytes) / seconds.median; }
  double bus_rate() const;
};

/// "all_reduce", or nothing.
std::optional<Collective> find_collective(std::string_view name);
std::vector<std::string> collective_names();

/// In the order of kinds, then bytes. Forks: to be called while the process has one thread. Throws EnvError with
/// what the first rank that failed said.
std::vector<CollectiveResult> bench_collectives(const CollectiveRequest& request);

}  // namespace trainctl
