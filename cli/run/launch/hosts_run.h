// A run whose ranks run on several hosts, where agents carry out the launcher's decisions. A lost host ends it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cli/run/launch/run.h"
#include "launcher/hosts/agent_ranks.h"
#include "launcher/hosts/copies.h"
#include "launcher/hosts/transport.h"

namespace trainctl {

class HostsRun : public Run {
 public:
  HostsRun(std::unique_ptr<Workload> workload, RunDisplayOptions display, boost::asio::io_context& loop,
           std::shared_ptr<const hosts::Transport> transport)
      : Run(std::move(workload), std::move(display), loop), transport_(std::move(transport)) {}

 protected:
  Outcome run_ranks() override { return supervise_hosts(false); }
  /// Supervises ranks on the workload's hosts. `lost_host_ends`: see Supervision::Limits.
  Outcome supervise_hosts(bool lost_host_ends);
  /// The ranks that are supervised now; null: none.
  hosts::AgentRanks* ranks() { return ranks_; }
  const std::shared_ptr<const hosts::Transport>& transport() const { return transport_; }

 private:
  hosts::HostsOptions options();

  const std::shared_ptr<const hosts::Transport> transport_;
  std::optional<std::vector<hosts::Copy>> copies_;  ///< launch.copy, for launch.hosts
  hosts::AgentRanks* ranks_ = nullptr;
};

}  // namespace trainctl
