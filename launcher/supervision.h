// What the launcher does when something happens to a rank: pure decisions, told of events and of the
// time, so that tests need neither processes nor a clock.
//
//            a rank fails               grace is over, or a second Ctrl-C
//   running ───────────────▶ stopping ────────────────────────────────────▶ killing
//      │  a rank complains     ▲  SIGTERM to all groups                       SIGKILL to all groups
//      │  of another           │ settle is over, or a rank fails by itself
//      └───────▶ settling ─────┘                       done: every started rank has ended
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "launcher/rank_error.h"
#include "launcher/spawn.h"

namespace trainctl {

enum class ProcessState { waiting, running, ended, failed_to_start };

/// How far a rank is, as far as it says.
struct RankProgress {
  uint64_t position = 0;  ///< differs from the last one when the rank has moved
  bool waiting = false;   ///< in a call that waits for other ranks
  bool done = false;      ///< its work is over: it may take its time to end
};

/// All that is known of a rank when it has ended.
struct RankReport {
  ProcessState state = ProcessState::waiting;
  ProcessEnd end;
  std::optional<RankError> error;  ///< what it wrote itself
  std::string start_error;         ///< failed_to_start: why
  double time = 0;                 ///< unix seconds at which it ended, or said that it failed
  bool asked = false;              ///< it ended after we had told it to stop
  bool out_of_memory = false;      ///< killed, and the kernel says that memory was the reason
  std::string doing;               ///< "step 412, all_reduce grad.0"; may be empty

  bool failed() const {
    return state == ProcessState::failed_to_start ||
           (state == ProcessState::ended && (end.signaled || end.code != 0 || error.has_value()));
  }
};

class Supervision {
 public:
  struct Limits {
    double grace_seconds = 10;    ///< between SIGTERM and SIGKILL
    double settle_seconds = 0.5;  ///< how long a complaint about another rank waits for that rank's own failure
    double timeout_seconds = 60;  ///< how long a rank that reports its progress may stand still
    int max_restarts = 0;         ///< times that all ranks start again after one of them failed
  };
  using SignalRank = std::function<void(int rank, int signal)>;

  Supervision(int num_ranks, Limits limits, SignalRank signal_rank);

  // Events. `now` is in seconds of any steady clock.
  void started(int rank);
  void failed_to_start(int rank, std::string why, double time, double now);
  /// `report` says how it ended; state and asked are filled in here.
  void ended(int rank, RankReport report, double now);
  void interrupted(int signal, double now);
  void advance(double now);

  /// When `advance` has something to do next.
  double deadline() const { return deadline_; }
  bool done() const;
  bool stopping() const { return phase_ != Phase::running; }
  /// The signal that the user sent first; 0: none.
  int interrupt_signal() const { return interrupt_signal_; }
  const std::vector<RankReport>& reports() const { return reports_; }

 private:
  enum class Phase { running, settling, stopping, killing };
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  void stop(double now);
  void kill_all();
  void signal_running(int signal);

  Limits limits_;
  SignalRank signal_rank_;
  std::vector<RankReport> reports_;
  Phase phase_ = Phase::running;
  double deadline_ = kNever;
  int interrupt_signal_ = 0;
};

}  // namespace trainctl
