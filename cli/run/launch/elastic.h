// launch.elastic: chooses the hosts of a run after each loss, and records what the changes cost.
//
//   all hosts ──a host is lost──▶ remaining hosts ──it responds again──▶ all hosts     each arrow: a new plan, resuming
//                                  │                                                   from the newest checkpoint
//                                  └──another is lost──▶ …  fewer than min_ranks: the run ends
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
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
  std::string why;  ///< "host b has not responded for 3 s", "host b is back"
  int ranks_before = 0, ranks = 0;
  int64_t last_step = 0;      ///< last step finished before the change
  int64_t resumed_step = 0;   ///< steps after it were repeated
  double begin_seconds = 0;   ///< time since the start of the run at which last_step was finished
  double paused_seconds = 0;  ///< from then until the next finished step; 0: none yet
  double redone_seconds = 0;  ///< time that the repeated steps had taken before
};

class Elastic {
 public:
  /// `spec`: the job of the whole run. `transport`: null selects the job's. Throws SpecError, EnvError.
  explicit Elastic(const JobSpec& spec, std::shared_ptr<const hosts::Transport> transport = nullptr);
  ~Elastic();
  Elastic(const Elastic&) = delete;
  Elastic& operator=(const Elastic&) = delete;

  /// Notes the hosts that were lost among those of `cluster`; if the link between two hosts is broken, one of them.
  /// Returns the reason; empty: no host was lost.
  std::string note_lost(const Cluster& cluster, const std::vector<RankReport>& reports);
  /// Notes how long the ranks of `cluster` take for their work in a step (WorkloadReports::uneven_work). `of_ranks` has
  /// the number of micro-batches of each rank; empty: all have equally many. Returns true if another division of the
  /// work, or the run without the slow host, would be clearly faster: then the ranks should be stopped, and
  /// take_straggler() says why.
  bool note_work(const Cluster& cluster, const Ints& of_ranks, const std::vector<double>& work);
  std::string take_straggler() { return std::exchange(straggler_, ""); }

  /// Readmits the hosts that respond again. Returns a text that names them; empty: none.
  std::string take_back();
  /// Jobs on the remaining hosts, the one with most ranks first; each must then be planned. `fault`: why the last
  /// rejected combination of hosts is invalid; unchanged if none was rejected.
  /// `without`: a host that is treated as lost.
  std::vector<JobSpec> jobs(std::string& fault, const std::string& without = "") const;

  /// Sets the function that returns a host's listener for link checks, as AgentRanks::link_listener.
  void use_listeners(std::function<std::string(const std::string& host)> listener_of) {
    listener_of_ = std::move(listener_of);
  }
  /// Call it often: probes lost hosts.
  void look();
  bool is_any_back() const { return !back_.empty(); }

  // Costs.
  void changed(HostChange change) { changes_.push_back(std::move(change)); }
  /// Notes the run's progress, `seconds` after its start. Returns a line once a change is complete, otherwise "".
  std::string progressed(int64_t finished_steps, double seconds);
  int64_t last_step() const { return last_step_; }
  double last_step_seconds() const { return last_seconds_; }
  /// Fraction of the time since the first step that was spent on steps that were not repeated later.
  std::optional<double> goodput() const;
  nlohmann::ordered_json report() const;
  std::string summary() const;

 private:
  struct Lost {
    double since = 0, tried = 0, wait = 0;  ///< `wait`: seconds until the next probe
    std::string beyond;                     ///< host that it must also reach again; empty: only the launcher
    bool computes_incorrectly = false;      ///< an audit has failed there: it is not taken back
    hosts::PipedChild probe;
    std::string output;
  };
  void drop_probe(Lost& lost);
  void ask(const std::string& host, Lost& lost);
  std::string question(const Lost& lost);
  Lost& note(const std::string& host);
  std::vector<JobSpec> jobs_on(std::vector<HostRanks> left, std::string& fault) const;
  /// The job on these hosts, before it is checked.
  JobSpec job_on(const std::vector<HostRanks>& left) const;
  /// By rank of these hosts; empty: they are not known, or the job cannot divide its work by them.
  std::vector<double> speeds_on(const std::vector<HostRanks>& left) const;
  /// The shortest step that speeds_ promise for the work of a step, by another division or without a slow host.
  double shortest_step(const std::vector<HostRanks>& left, double micro_batches) const;
  int64_t most_rows(const std::vector<HostRanks>& left) const;  ///< the most rows of a micro-batch on one rank
  /// A host without which the measured speeds of the others promise clearly faster steps; empty: none.
  std::string host_too_slow(const std::vector<HostRanks>& left) const;
  std::string host_to_leave(const LostLink& link) const;

  const JobSpec spec_;
  const std::shared_ptr<const hosts::Transport> transport_;
  std::vector<HostRanks> hosts_;
  std::map<std::string, Lost> lost_;
  std::map<std::string, double> speeds_;  ///< measured for one rank of each host; empty: they seem equal
  std::string straggler_;                 ///< why the ranks are stopped
  int divisions_ = 0;                     ///< how often the work was divided again
  std::map<std::string, int> losses_;     ///< how often each was lost
  std::vector<std::string> back_;
  std::function<std::string(const std::string&)> listener_of_;
  std::optional<hosts::Bundle> bundle_;
  std::vector<HostChange> changes_;
  int64_t last_step_ = 0;
  double last_seconds_ = 0, first_seconds_ = -1, step_seconds_ = 0;
};

}  // namespace trainctl
