// One anonymous memory segment (memfd) that the ranks of one host share: each rank's status, the tables of groups,
// channels for messages, and every rank's arena. It has no name in the file system, so a crash leaves nothing behind.
#pragma once

#include <array>
#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/runtime/comm/batch_board.h"
#include "engine/runtime/comm/event.h"
#include "engine/runtime/comm/save_board.h"
#include "engine/runtime/comm/step_gate.h"

namespace trainctl {

namespace comm {
class Segment;
}

enum class RankState : uint32_t { starting, loading, connecting, training, saving, done, failed };

/// What a rank is doing. Written by the rank (and `state` by the launcher, once the rank has ended); read by its
/// peers and the launcher at any time. All zero means "not started".
struct alignas(64) RankStatus {
  std::atomic<RankState> state{RankState::starting};
  std::atomic<int32_t> pid{0};  ///< 0: no Communicator yet
  std::atomic<uint32_t> epoch{0};
  std::atomic<uint32_t> step{0};            ///< since the start of the job, from 1; 0: none yet
  std::atomic<int32_t> instruction{-1};     ///< index into the rank's Program; -1: not in a step
  std::atomic<uint32_t> total_epochs{0};    ///< of the job, the last one perhaps in part; 0: not known yet
  std::atomic<uint64_t> total_steps{0};     ///< of the job; 0: not known yet
  std::atomic<uint64_t> finished_steps{0};  ///< reported, with their loss
  std::atomic<float> loss{0};               ///< of the last finished step
  std::array<std::atomic<float>, kMostMetrics> metrics{};  ///< of that step, as in Program::metrics
  std::atomic<float> samples_per_second{0};
  std::atomic<uint32_t> validation_batches{0};  ///< of the validation that runs; 0: none does, and `instruction` is of
                                                ///< the training's Program
  std::atomic<uint32_t> validated_batches{0};   ///< of those
  std::atomic<uint64_t> copied{0};  ///< steps before the last state that the rank has copied for a save, plus 1; 0: none
  comm::Event mail;                 ///< rings with each piece of a message to this rank
  std::atomic<uint64_t> looks{0};   ///< at the save that it waits for, while `saving`; of an asynchronous server for work
};

/// One rank sends messages to another.
struct Route {
  int32_t from = 0, to = 0;
  friend auto operator<=>(const Route&, const Route&) = default;
};

class SharedMemory {
 public:
  /// A segment with one zeroed, 64-byte aligned arena a rank and a channel for each of `routes`, which may be
  /// unsorted and repeated. Ranks may send messages on these routes only. Pages take memory when first touched.
  static std::shared_ptr<SharedMemory> create(const std::vector<int64_t>& arena_bytes_per_rank,
                                              std::vector<Route> routes = {});
  /// Maps a segment that another process created; takes ownership of `fd`. EnvError if it is no such segment.
  static std::shared_ptr<SharedMemory> attach(int fd);

  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  /// Not close-on-exec: a child inherits it under the same number.
  int fd() const { return fd_; }
  int num_ranks() const;
  int64_t bytes() const { return bytes_; }
  std::span<std::byte> arena(int rank) const;
  RankStatus& status(int rank) const;
  StepGate& gate() const;
  SaveBoard& saves() const;
  BatchBoard& batches() const;

  comm::Segment& segment() const { return *segment_; }

 private:
  SharedMemory() = default;
  void map(int64_t bytes);

  int fd_ = -1;
  std::byte* base_ = nullptr;
  int64_t bytes_ = 0;
  std::unique_ptr<comm::Segment> segment_;
};

}  // namespace trainctl
