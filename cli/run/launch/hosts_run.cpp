// A run whose ranks run on several hosts, where agents carry out the launcher's decisions.
#include "cli/run/launch/hosts_run.h"

#include "cli/run/launch/network_on_hosts.h"
#include "cli/run/launch/run_files.h"
#include "engine/spec/parse.h"

namespace trainctl {

Outcome HostsRun::supervise_hosts(bool lost_host_ends) {
  Launch launch = this->launch();
  launch.limits.lost_host_ends = lost_host_ends;
  hosts::LauncherShare no_share;
  hosts::LauncherSaves no_saves;
  NetworkOnHosts* const network = workload().on_hosts();
  hosts::LauncherShare& share = network == nullptr ? no_share : *network;
  hosts::LauncherSaves& saves = network == nullptr ? no_saves : *network;
  hosts::AgentRanks ranks(launch, options(), share, saves, loop());
  ranks_ = &ranks;
  Outcome outcome = supervise(launch, ranks, loop());
  ranks_ = nullptr;
  return outcome;
}

hosts::HostsOptions HostsRun::options() {
  hosts::HostsOptions options;
  options.transport = transport_;
  options.reconnect_seconds = spec().launch.reconnect_seconds;
  options.interface = spec().launch.interface;
  options.bind = spec().launch.bind;
  options.hold_port = spec().has_command();
  options.first_attempt = first_attempt();
  if (!copies_) copies_ = hosts::copies_of(copied_to_hosts(spec()));
  options.copies = *copies_;
  if (spec().has_command())
    options.program_folder = hosts::copied_folder(spec().launch.copy, spec().working_dir).value_or("");
  else
    options.files = {{"job.yaml", to_yaml(job_on_hosts(spec()))}};
  return options;
}

}  // namespace trainctl
