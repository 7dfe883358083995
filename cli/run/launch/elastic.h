// launch.elastic: which hosts a run uses from one loss to the next, and what the changes cost.
//
//   all hosts ──a host is lost──▶ those that are left ──it answers again──▶ all hosts        each arrow: a new plan,
//                                  │                                                          and on from the newest
//                                  └──another is lost──▶ …  fewer than min_ranks: the end     checkpoint
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/spec/hosts.h"
#include "engine/spec/job_spec.h"
#include "launcher/cluster.h"
#include "launcher/hosts/bundle.h"
#include "launcher/hosts/transport.h"
#include "launcher/supervision.h"

namespace trainctl {

/// A change of hosts, or a restart on the same ones, and what it cost.
struct HostChange {
  std::string why;  ///< "host b has not answered for 3 s", "host b is back"
  int ranks_before = 0, ranks = 0;
  int64_t last_step = 0;      ///< the last that was finished before
  int64_t resumed_step = 0;   ///< steps above it were done again
  double begin_seconds = 0;   ///< since the start of the run: when that step was finished
  double paused_seconds = 0;  ///< from then to the first step that was finished after; 0: none is yet
  double redone_seconds = 0;  ///< that the steps which were done again had taken
};

class Elastic {
 public:
  /// `spec`: of the whole run. `transport`: null: as the job says. Throws SpecError, EnvError.
  explicit Elastic(const JobSpec& spec, std::shared_ptr<const hosts::Transport> transport = nullptr);
  ~Elastic();
  Elastic(const Elastic&) = delete;
  Elastic& operator=(const Elastic&) = delete;

  /// Takes note of the hosts that were lost among those of `cluster`; of two hosts whose link is broken, one. Returns
  /// why, in words; empty: none was lost.
  std::string note_lost(const Cluster& cluster, const std::vector<RankReport>& reports);
  /// The hosts that answer again are used again. Returns which, in words; empty: none does.
  std::string take_back();
  /// Jobs on the hosts that are left, the one with most ranks first; each is to be planned. `fault`: why the last one
  /// that is none could not be one; unchanged if there is none such.
  /// `without`: a host that is not lost yet, and counts as if it were.
  std::vector<JobSpec> jobs(std::string& fault, const std::string& without = "") const;

  /// Where a host that is in use accepts connections that check a link, as AgentRanks::link_listener.
  void use_listeners(std::function<std::string(const std::string& host)> listener_of) {
    listener_of_ = std::move(listener_of);
  }
  /// Call it often: asks lost hosts whether they answer again.
  void look();
  bool is_any_back() const { return !back_.empty(); }

  // Costs.
  void changed(HostChange change) { changes_.push_back(std::move(change)); }
  /// How far the run is, `seconds` after its start. Returns a line once a change is over; else "".
  std::string progressed(int64_t finished_steps, double seconds);
  int64_t last_step() const { return last_step_; }
  double last_step_seconds() const { return last_seconds_; }
  /// The time in which steps were trained that counted, of all time since the first step.
  std::optional<double> goodput() const;
  nlohmann::ordered_json report() const;
  std::string summary() const;

 private:
  struct Lost {
    double since = 0, tried = 0, wait = 0;  ///< `wait`: seconds until it is asked again
    std::string beyond;                     ///< the host that it must reach again; empty: the launcher alone
    hosts::PipedChild probe;
    std::string said;
  };
  void drop_probe(Lost& lost);
  void ask(const std::string& host, Lost& lost);
  std::string question(const Lost& lost);
  Lost& note(const std::string& host);
  std::string host_to_leave(const LostLink& link) const;

  const JobSpec spec_;
  const std::shared_ptr<const hosts::Transport> transport_;
  std::vector<HostRanks> hosts_;
  std::map<std::string, Lost> lost_;
  std::map<std::string, int> losses_;  ///< how often each was lost
  std::vector<std::string> back_;
  std::function<std::string(const std::string&)> listener_of_;
  std::optional<hosts::Bundle> bundle_;
  std::vector<HostChange> changes_;
  int64_t last_step_ = 0;
  double last_seconds_ = 0, first_seconds_ = -1, step_seconds_ = 0;
};

}  // namespace trainctl
