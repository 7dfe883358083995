// What the launcher does when something happens to a rank: pure decisions, told of events and of the
// time, so that tests need neither processes nor a clock.
//
//            a rank fails, or is silent      grace is over, or a second signal of the user
//   running ────────────────────────▶ stopping ──────────────────────────────────────────▶ killing
//     │ │  a rank complains            ▲  ▲  SIGTERM to all groups                          SIGKILL to all groups
//     │ │  of another                  │  │ settle is over, or a rank fails by itself
//     │ └──────────────▶ settling ─────┘  │
//     └────────────────▶ asking ──────────┘ grace is over, or a rank fails
//        the user's signal: ranks end at a step's end
//
//   every started rank has ended: done; restart_due() where one had failed and restarts are left
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
};

/// All that is known of a rank when it has ended.
struct RankReport {
  ProcessState state = ProcessState::waiting;
  ProcessEnd end;
  std::optional<RankError> error;  ///< what it wrote itself
  std::string start_error;         ///< failed_to_start: why
  double time = 0;                 ///< unix seconds at which it ended, or said that it failed
  bool asked = false;              ///< it ended after we had sent it a signal
  bool out_of_memory = false;      ///< killed, and the kernel says that memory was the reason
  std::string doing;               ///< "step 412, all_reduce grad.0"; may be empty

  // How it was when all ranks were told to stop.
  double silent_seconds = 0;  ///< it is why they were: it had stood still for so long; 0: it is not
  bool waiting = false;       ///< in a call that waits for other ranks
  bool frozen = false;        ///< its process was stopped, by SIGSTOP or a debugger
  bool reports_progress = false;

  bool failed() const {
    return state == ProcessState::failed_to_start ||
           (state == ProcessState::ended && (end.signaled || end.code != 0 || error.has_value()));
  }
};

class Supervision {
 public:
  struct Limits {
    double grace_seconds = 10;    ///< between SIGTERM and SIGKILL, and for ranks that were asked to end
    double settle_seconds = 0.5;  ///< how long a complaint about another rank waits for that rank's own failure
    double timeout_seconds = 60;  ///< how long a rank that reports its progress may stand still
    int max_restarts = 0;         ///< times that all ranks start again after one of them failed
  };
  /// What decisions act on, and look at.
  struct Reach {
    std::function<void(int rank, int signal)> signal_rank;
    /// As in Launch; none: the user's signal goes to the ranks.
    std::function<void()> ask_to_stop = {};
    /// Whether a rank's process is stopped; none: nobody can say.
    std::function<bool(int rank)> is_frozen = {};
  };

  Supervision(int num_ranks, Limits limits, Reach reach);

  // Events. `now` is in seconds of any steady clock.
  void started(int rank, double now);
  void failed_to_start(int rank, std::string why, double time, double now);
  void progressed(int rank, RankProgress progress, double now);
  /// `report` says how it ended; state, asked and how it was before are filled in here.
  void ended(int rank, RankReport report, double now);
  void interrupted(int signal, double now);
  void advance(double now);
  /// All ranks wait to be started again. Only where restart_due().
  void restart();

  /// When the phase changes if nothing else happens.
  double deadline() const { return deadline_; }
  bool done() const;
  bool restart_due() const;
  bool stopping() const { return phase_ != Phase::running; }
  /// Whether ranks are to end at a step's end.
  bool asking() const { return phase_ == Phase::asking; }
  /// 0: the first one.
  int attempt() const { return attempt_; }
  /// The signal that the user sent first; 0: none.
  int interrupt_signal() const { return interrupt_signal_; }
  /// The same, where the run ends because of it: it had not failed before.
  int ending_signal() const { return ending_signal_; }
  const std::vector<RankReport>& reports() const { return reports_; }

 private:
  enum class Phase { running, settling, asking, stopping, killing };
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  /// Of a rank that runs.
  struct Motion {
    std::optional<RankProgress> progress;
    double moved = 0;  ///< when it last did
  };

  void ask(int signal, double now);
  void stop(double now, double patience);
  void kill_all();
  void signal_running(int signal);
  void note_states();
  void looked(double now);
  void check_silence(double now);
  bool restarts_left() const;

  Limits limits_;
  Reach reach_;
  std::vector<RankReport> reports_;
  std::vector<Motion> motions_;
  Phase phase_ = Phase::running;
  double looked_ = 0;
  double deadline_ = kNever;
  bool signalled_ = false;
  int attempt_ = 0;
  int interrupt_signal_ = 0;
  int ending_signal_ = 0;
};

}  // namespace trainctl
