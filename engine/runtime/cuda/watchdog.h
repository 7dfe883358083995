// Watches over the steps that a device runs without its host. Publishes this rank's position, and ends a step that
// cannot finish because a rank is gone or late: its communication would wait forever.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/runtime/cuda/cuda_communicator.h"
#include "engine/runtime/cuda/step_kernels.h"

namespace trainctl::cuda {

class Watchdog {
 public:
  /// `peers` is null if the rank has no peers. All arguments must outlive it.
  Watchdog(const Program& program, Communicator& ranks, CudaCommunicator* peers, const PositionWord* position,
           double timeout_seconds);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void step_started() { ++started_; }
  /// `step`: from 1 over the whole run.
  void step_finished(uint32_t step) {
    last_step_ = step;
    ++finished_;
  }

  bool has_given_up() const { return gave_up_; }
  /// Throws the error once it has given up.
  void throw_if_given_up() const;

 private:
  using Clock = std::chrono::steady_clock;
  /// Changes whenever the rank makes progress.
  struct Progress {
    uint64_t position, started, finished;
    bool operator==(const Progress&) const = default;
  };

  void watch();
  void look();
  RankPosition publish(const Progress& now);
  void give_up(CommError error);
  /// Describes the call that this rank waits for; missing_at(): the ranks that have not arrived.
  std::string call_at(RankPosition position) const;
  std::vector<int> missing_at(RankPosition position) const;

  const Program& program_;
  Communicator& ranks_;
  CudaCommunicator* peers_;
  const PositionWord* position_;
  const double timeout_seconds_;
  std::atomic<uint64_t> started_{0}, finished_{0};
  std::atomic<uint32_t> last_step_{0};
  std::atomic<bool> gave_up_{false};
  std::optional<CommError> error_;  ///< written before gave_up_
  Progress last_{};
  Clock::time_point changed_ = Clock::now();

  std::mutex mutex_;
  std::condition_variable ending_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace trainctl::cuda
