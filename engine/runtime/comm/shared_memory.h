// One anonymous memory segment (memfd) that the ranks of one host share: what each rank is doing, the
// tables through which they meet, channels for their messages, and every rank's arena. Nothing is named; nothing is
// left behind.
#pragma once

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/runtime/comm/step_gate.h"

namespace trainctl {

namespace comm {
class Segment;
}

enum class RankState : uint32_t { starting, loading, connecting, training, done, failed };

/// What a rank is doing. Written by the rank (and `state` by the launcher, when the rank is gone); read by its
/// peers and the launcher at any time. All zero is "not started".
struct alignas(64) RankStatus {
  std::atomic<RankState> state{RankState::starting};
  std::atomic<int32_t> pid{0};  ///< 0: no Communicator yet
  std::atomic<uint32_t> epoch{0};
  std::atomic<uint32_t> step{0};         ///< since the start of the job, from 1; 0: none yet
  std::atomic<int32_t> instruction{-1};  ///< index into the rank's Program; -1: not in a step
  std::atomic<uint32_t> total_steps{0};  ///< of the job; 0: not known yet
  std::atomic<float> loss{0};            ///< of the last finished step
  std::atomic<float> samples_per_second{0};
};

/// Messages go from one rank to another.
struct Route {
  int32_t from = 0, to = 0;
  friend auto operator<=>(const Route&, const Route&) = default;
};

class SharedMemory {
 public:
  /// A segment with one zeroed arena a rank, each 64-byte aligned, and a channel for each of `routes`, which may come
  /// in any order and more than once. Ranks may send no messages on other routes. Memory is taken when first touched.
  static std::shared_ptr<SharedMemory> create(const std::vector<int64_t>& arena_bytes_per_rank,
                                              std::vector<Route> routes = {});
  /// Maps a segment that another process created; takes over `fd`. EnvError where it is no such segment.
  static std::shared_ptr<SharedMemory> attach(int fd);

  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  /// Not close-on-exec: a child of fork and exec has it under the same number.
  int fd() const { return fd_; }
  int num_ranks() const;
  int64_t bytes() const { return bytes_; }
  std::span<std::byte> arena(int rank) const;
  RankStatus& status(int rank) const;
  StepGate& gate() const;

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
