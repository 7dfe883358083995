// State that the ranks of a job and their launcher exchange while it runs, without a collective: how far each rank is,
// after which step all end, what is saved, and values under names (addresses of Gloo).
//
// Ranks and launcher use only this interface. On one host all of it but the values is the shared memory segment itself
// (shared_memory.h). On several hosts each has such a segment with the statuses of all ranks. The statuses that one
// host's ranks write are copied to the others (board_changes.h) by what connects the hosts; the gate is closed in two
// steps (step_gate.h); the values are in a store that answers the same on every host.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "engine/graph/graph.h"
#include "engine/runtime/comm/event.h"
#include "engine/runtime/comm/key_value_store.h"
#include "engine/runtime/comm/save_board.h"
#include "engine/runtime/comm/step_gate.h"

namespace trainctl {

enum class RankState : uint32_t { starting, loading, connecting, training, saving, done, failed };

/// Activity of a rank. Written by the rank (and `state` by the launcher, once the rank has ended); read by its peers
/// and the launcher at any time. All zero means "not started".
struct alignas(64) RankStatus {
  std::atomic<RankState> state{RankState::starting};
  std::atomic<int32_t> pid{0};  ///< 0: no Communicator yet
  std::atomic<uint32_t> epoch{0};
  std::atomic<uint32_t> step{0};            ///< since the start of the job, from 1; 0: none yet
  std::atomic<int32_t> instruction{-1};     ///< index into the rank's Program; -1: not in a step
  std::atomic<uint32_t> total_epochs{0};    ///< epochs of the job, the last one perhaps in part; 0: not known yet
  std::atomic<uint64_t> total_steps{0};     ///< steps of the job; 0: not known yet
  std::atomic<uint64_t> finished_steps{0};  ///< steps reported, with their loss
  std::atomic<uint64_t> skipped_steps{0};   ///< steps of this run that changed neither weights nor optimizer states
  std::atomic<float> loss{0};               ///< loss of the last finished step
  std::array<std::atomic<float>, kMostMetrics> metrics{};  ///< metrics of that step; see Program::metrics
  std::atomic<float> samples_per_second{0};
  /// Number of batches of the current validation; 0: there is none, and `instruction` refers to the training's Program.
  std::atomic<uint32_t> validation_batches{0};
  std::atomic<uint32_t> validated_batches{0};  ///< batches of that validation that are done
  std::atomic<uint64_t> copied{
      0};            ///< steps before the last state that the rank has copied for a save, plus 1; 0: none
  comm::Event mail;  ///< rings with each piece of a message to this rank
  /// Number of moves that neither a step nor an instruction shows: kernels prepared before the first step, looks at the
  /// save that it waits for, looks of an asynchronous server for work.
  std::atomic<uint64_t> looks{0};
};

class RankBoard {
 public:
  virtual ~RankBoard() = default;

  virtual int num_ranks() const = 0;
  /// A rank writes its own. For a rank of another host, this is the last value that this host has received.
  virtual RankStatus& status(int rank) const = 0;
  virtual StepGate& gate() const = 0;
  /// Board of saves of this host's ranks.
  virtual SaveBoard& saves() const = 0;
  /// The same values on all hosts. check() if this board was given none: ranks of one host that share memory need none.
  virtual KeyValueStore& values() const = 0;
};

}  // namespace trainctl
