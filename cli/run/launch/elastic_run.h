// launch.elastic: a run that continues on the remaining hosts when a host is lost, and takes hosts back that respond
// again. Each change of hosts ends one supervision and begins another.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "cli/run/launch/elastic.h"
#include "cli/run/launch/hosts_run.h"

namespace trainctl {

class ElasticRun : public HostsRun {
 public:
  ElasticRun(std::unique_ptr<Workload> workload, RunDisplayOptions display, boost::asio::io_context& loop,
             std::shared_ptr<const hosts::Transport> transport, Replan replan);

  void on_restart(int attempt) override;

 protected:
  Outcome run_ranks() override;
  void look() override;
  void stop_requested() override { allow_rescue(false); }
  nlohmann::ordered_json changes() const override { return elastic_.report(); }
  std::string changes_line() const override { return elastic_.summary(); }

 private:
  bool change_hosts(const Outcome& outcome);
  std::unique_ptr<Workload> plan_for_hosts(std::string& fault);
  void allow_rescue(bool is_allowed);
  void write_rescued();
  void note_progress();
  void note_change(const std::string& why, int ranks_before);
  bool has_progressed();
  void plan_ahead();

  const Replan replan_;
  Elastic elastic_;
  std::set<std::string> planned_ahead_;  ///< hosts for whose loss there is a plan
  bool takes_back_ = false;              ///< the ranks were asked to stop so that hosts can be taken back
};

}  // namespace trainctl
