// The launcher's reactions to events of ranks: pure decisions that take events and the time as
// arguments, so that tests need neither processes nor a clock.
//
//            a rank fails, or is silent      grace is over, or a second signal of the user
//   running ────────────────────────▶ stopping ──────────────────────────────────────────▶ killing: ranks that do not
//     │ │  a rank complains            ▲  ▲  SIGTERM to all groups   SIGKILL to all groups   end are given up
//     │ │  of another, or fails        │  │ settle is over, or a rank fails on its own
//     │ │  without saying why          │  │
//     │ └──────────────▶ settling ─────┘  │
//     └────────────────▶ asking ──────────┘ grace is over, or a rank fails
//        the user's signal: ranks end at a step's end
//
//   when every started rank has ended: done, or restart_due() if one has failed and restarts remain
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

/// Progress that a rank reports.
struct RankProgress {
  uint64_t position = 0;  ///< changes when the rank makes progress
  bool waiting = false;   ///< in a call that waits for other ranks
  bool saving = false;    ///< it waits for a disk to save its state, with its own time limit
};

/// Two hosts that cannot connect to each other, although the launcher can connect to both.
struct LostLink {
  std::string from, to;  ///< names of hosts, in the order of the job
  std::string fault;     ///< "a cannot connect to 10.0.0.3: Connection timed out"
  std::string worse;     ///< the one of the two that has more broken links; empty: neither
};

/// Everything known about a rank when it has ended.
struct RankReport {
  ProcessState state = ProcessState::waiting;
  ProcessEnd end;
  std::optional<RankError> error;  ///< error that it reported itself
  std::string start_error;         ///< failed_to_start: why
  double time = 0;                 ///< unix seconds at which it ended or reported its failure
  bool asked = false;              ///< it ended after the launcher sent it a signal
  bool out_of_memory = false;      ///< the kernel killed it for lack of memory
  std::string doing;               ///< "step 412, all_reduce grad.0"; may be empty
  std::string last_lines;          ///< last lines of its stderr
  bool spared = false;             ///< it was killed, and the run continued without it (Limits::independent_ranks)
  std::string host_lost;           ///< why its host was lost: "has not responded for 15 s"; empty: it was not
  std::optional<LostLink> lost_link = {};  ///< broken link that made it lose another rank
  bool stuck = false;                      ///< SIGKILL did not end it: it waits for a disk or device
  /// See Limits. Without explanations, a rank may have failed only because another one hangs or is gone.
  bool ranks_explain = true;
  bool failed_unasked = false;  ///< it reported its error before the launcher sent it a signal
  bool blames_peer =
      false;  ///< its error or last lines say that it lost another rank, or waited for it without success

  // Its state when all ranks were asked to stop.
  double silent_seconds = 0;  ///< > 0: it made no progress for this long and is the reason
  bool waiting = false;       ///< in a call that waits for other ranks
  bool frozen = false;        ///< its process was stopped, by SIGSTOP or a debugger
  bool reports_progress = false;

  bool failed() const {
    if (spared) return false;
    return state == ProcessState::failed_to_start ||
           (state == ProcessState::ended && (end.signaled || end.code != 0 || !end.left.empty() || error.has_value()));
  }
};

class Supervision {
 public:
  struct Limits {
    double grace_seconds = 10;    ///< between SIGTERM and SIGKILL, and for ranks that were asked to end
    double settle_seconds = 0.5;  ///< after a complaint about another rank: time to wait for that rank's failure
    double timeout_seconds = 60;  ///< longest time without progress for a rank that reports it
    double kill_seconds = 15;     ///< after SIGKILL: a rank that still has not ended is given up
    /// True if a rank that fails reports why, and for which other ranks it waited. If not, the launcher settles after
    /// each failure to see which ranks fail at the same time, and which hang.
    bool ranks_explain = true;
    /// This number of ranks, from rank 0 on, do not wait for each other: the run continues without those that are
    /// killed, and kills one without progress, while another of them is left.
    int independent_ranks = 0;
    /// Largest number of restarts of all ranks after one has failed, and of each rank on its own.
    int max_restarts = 0;
    /// A lost host or link ends all attempts: the caller continues without the host.
    bool lost_host_ends = false;
  };
  /// The actions and queries that decisions use.
  struct Reach {
    std::function<void(int rank, int signal)> signal_rank;
    /// Same as RankRunner::stop_after_step; unset: the user's signal is passed on to the ranks.
    std::function<void()> ask_to_stop = {};
    /// Tells whether a rank's process is stopped; unset: unknown.
    std::function<bool(int rank)> is_frozen = {};
    /// The error reported by a rank that does not end; unset: none. One of its threads may wait forever for a file
    /// system while another has reported the file.
    std::function<std::optional<RankError>(int rank)> error_of = {};
  };

  Supervision(int num_ranks, Limits limits, Reach reach);

  // Events. `now` is in seconds of any steady clock.
  void started(int rank, double now);
  void failed_to_start(int rank, std::string why, double time, double now);
  void progressed(int rank, RankProgress progress, double now);
  /// `report` says how it ended; state, asked and the state before the stop are filled in here.
  void ended(int rank, RankReport report, double now);
  void interrupted(int signal, double now);
  void advance(double now);
  /// All ranks become `waiting`, to be started again. Requires restart_due().
  void restart();
  /// A spared rank becomes `waiting`, to be restarted by itself; false if its restarts are used up, or the run ends.
  bool rejoin(int rank);

  /// Returns when the phase changes if nothing else happens.
  double deadline() const { return deadline_; }
  bool done() const;
  bool restart_due() const;
  bool stopping() const { return phase_ != Phase::running; }
  /// Returns whether a waiting rank should be started, even after a failure that may be one of many at once.
  bool may_start() const { return phase_ == Phase::running || (phase_ == Phase::settling && !limits_.ranks_explain); }
  /// Returns whether the ranks have been asked to stop after a step.
  bool asking() const { return phase_ == Phase::asking; }
  /// Number of the current attempt; 0: the first.
  int attempt() const { return attempt_; }
  /// Ranks that did not end after SIGKILL.
  std::vector<int> stuck() const;
  /// The signal that the user sent first; 0: none.
  int interrupt_signal() const { return interrupt_signal_; }
  /// The same if the run ends because of it and had not failed before; otherwise 0.
  int ending_signal() const { return ending_signal_; }
  const std::vector<RankReport>& reports() const { return reports_; }

 private:
  enum class Phase { running, settling, asking, stopping, killing };
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  /// Progress of a running rank.
  struct Motion {
    std::optional<RankProgress> progress;
    double moved = 0;  ///< time of its last progress
  };

  void ask(int signal, double now);
  void stop(double now, double patience);
  void kill_all(double now);
  void give_up();
  void settle(double now);
  bool is_spared(int rank) const;
  void signal_running(int signal);
  void note_states();
  void looked(double now);
  void check_silence(double now);
  void kill_alone(int rank, double now);
  bool is_frozen(size_t rank) const;
  bool restarts_left() const;

  Limits limits_;
  Reach reach_;
  std::vector<RankReport> reports_;
  std::vector<int> rejoined_;  ///< by rank: number of restarts on its own
  std::vector<Motion> motions_;
  Phase phase_ = Phase::running;
  double looked_ = 0;
  double deadline_ = kNever;
  double settling_since_ = 0;
  bool signalled_ = false;
  int attempt_ = 0;
  int interrupt_signal_ = 0;
  int ending_signal_ = 0;
};

}  // namespace trainctl
