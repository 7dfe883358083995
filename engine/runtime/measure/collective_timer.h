// Times the collectives of ranks that do nothing else, over the communicators that runs use, for `trainctl bench
// collective`. One object per rank; all ranks make the same calls.
#pragma once

#include <memory>

#include "engine/graph/collective.h"
#include "engine/runtime/comm/shared_memory.h"
#include "engine/runtime/communicator.h"

namespace trainctl {

/// All ranks are one group, and elements are f32. `bytes` is the size of the larger one of a rank's input and output, a
/// multiple of 4 times the number of ranks. Calls are out of place, since repeated sums in place would overflow. The
/// data are random.
class CollectiveTimer {
 public:
  virtual ~CollectiveTimer() = default;

  /// The communicator in host memory, for agreements between the ranks.
  virtual Communicator& ranks() = 0;
  /// The transport of such a call: "shared memory", "NCCL", "copy engines".
  virtual const char* made_by(Collective kind, int64_t bytes) const = 0;
  /// Seconds of `runs` calls in a row, which all ranks begin together.
  virtual double seconds(Collective kind, int64_t bytes, int64_t runs) = 0;
  /// Makes one call on small integers; returns the number of wrong elements in this rank's result.
  virtual int64_t wrong_elements(Collective kind, int64_t bytes) = 0;
  /// The upper bound: bytes per second that a rank copies while all ranks copy as many, over the same medium.
  virtual double copy_bytes_per_second(int64_t bytes) = 0;
};

/// Bytes that a rank's arena in `memory` needs for calls of up to `most_bytes`.
int64_t collective_timer_bytes(int64_t most_bytes);

/// Measures collectives over shared memory.
std::unique_ptr<CollectiveTimer> make_cpu_collective_timer(std::shared_ptr<SharedMemory> memory, int rank,
                                                           int64_t most_bytes, double timeout_seconds);
/// Between GPUs; rank r uses GPU r. Throws EnvError.
std::unique_ptr<CollectiveTimer> make_cuda_collective_timer(std::shared_ptr<SharedMemory> memory, int rank,
                                                            int64_t most_bytes, double timeout_seconds);

}  // namespace trainctl
