// Times the collectives of ranks that do nothing else: over the communicators that runs use. What `trainctl bench
// collective` asks. One object a rank; all ranks make the same calls.
#pragma once

#include <memory>

#include "engine/graph/collective.h"
#include "engine/runtime/comm/shared_memory.h"
#include "engine/runtime/communicator.h"

namespace trainctl {

/// All ranks in one group, f32. `bytes` is the larger of what a rank puts in and gets out: a multiple of 4 times the
/// number of ranks. Out of place, since sums in place would grow without end; data are random.
class CollectiveTimer {
 public:
  virtual ~CollectiveTimer() = default;

  /// Host memory's: for what the ranks must agree on.
  virtual Communicator& ranks() = 0;
  /// What makes such a call: "shared memory", "NCCL", "copy engines".
  virtual const char* made_by(Collective kind, int64_t bytes) const = 0;
  /// Seconds of `runs` calls in a row, which all ranks begin together.
  virtual double seconds(Collective kind, int64_t bytes, int64_t runs) = 0;
  /// One call on small whole numbers: the elements of this rank's result that are not as they must be.
  virtual int64_t wrong_elements(Collective kind, int64_t bytes) = 0;
  /// The limit: bytes a second that a rank moves when all move as many at once, over what the ranks share.
  virtual double copy_bytes_per_second(int64_t bytes) = 0;
};

/// Bytes that a rank's arena in `memory` must have, for calls of up to `most_bytes`.
int64_t collective_timer_bytes(int64_t most_bytes);

/// Over shared memory.
std::unique_ptr<CollectiveTimer> make_cpu_collective_timer(std::shared_ptr<SharedMemory> memory, int rank,
                                                           int64_t most_bytes, double timeout_seconds);
/// Between GPUs; the rank's is the one of its number. Throws EnvError.
std::unique_ptr<CollectiveTimer> make_cuda_collective_timer(std::shared_ptr<SharedMemory> memory, int rank,
                                                            int64_t most_bytes, double timeout_seconds);

}  // namespace trainctl
