// Rules about launch: hosts, cluster managers, elastic runs.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/text.h"
#include "engine/spec/hosts.h"
#include "engine/spec/rules/rules.h"

namespace trainctl::rules {

namespace {

/// Returns a hint on how to write an invalid host; "" for a valid one.
std::string host_hint(const std::string& text) {
  if (text.ends_with(".txt") || text.find('/') != std::string::npos)
    return "to read the hosts from a file write launch: {hostfile: " + text + "}";
  if (parse_host(text)) return "";
  std::vector<std::string> parts;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of(", ;", at), text.size());
    if (end > at) parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  const bool are_hosts = parts.size() > 1 && std::all_of(parts.begin(), parts.end(), parse_host);
  return are_hosts ? "write [" + join(parts) + "]" : "write a, me@a, or a:4 for four ranks";
}

bool has_form(const std::string& text, std::string_view pattern) {
  return std::regex_match(text, std::regex(pattern.begin(), pattern.end()));
}

}  // namespace

void ranks_fit_on_the_hosts(RuleContext& r) {
  if (!r.fine({"launch.hosts", "launch.hostfile", "launch.ranks"}) || !r.job.launch.has_hosts()) return;
  const LaunchSpec& launch = r.job.launch;
  if (!launch.hosts.empty() && !launch.hostfile.empty())
    return r.wrong("launch.hostfile", "launch.hosts already lists the hosts", "remove one of the two");
  bool are_hosts = true;
  for (size_t i = 0; i < launch.hosts.size(); ++i) {
    const std::string hint = host_hint(launch.hosts[i]);
    if (hint.empty()) continue;
    are_hosts = false;
    r.wrong("launch.hosts[" + number(static_cast<int64_t>(i)) + "]", "'" + launch.hosts[i] + "' is not a valid host",
            hint);
  }
  if (!launch.hosts.empty() && are_hosts) {
    const Placement placement = place_ranks(parse_hosts(launch.hosts), launch.ranks);
    if (!placement.fault.empty()) r.wrong("launch.hosts", placement.fault, placement.hint);
  }
  if (r.job.has_command()) return;
  const auto missing = [&](bool is_set, const std::string& path, const std::string& what, const std::string& hint) {
    if (is_set && r.fine({path.c_str()})) r.wrong(path, what + " is not supported on several hosts", hint);
  };
  missing(launch.comm == "shm", "launch.comm", "shm", "remove launch.comm");
  missing(r.job.servers() > 0, "parallel.mode", "parameter_server", "use data_parallel, or remove launch.hosts");
}

void elastic_runs_have_hosts(RuleContext& r) {
  const LaunchSpec& launch = r.job.launch;
  if (!launch.elastic || !r.fine({"launch.elastic", "launch.hosts", "launch.hostfile", "launch.ranks"})) return;
  const bool is_managed = launch.target != Target::hosts;  // The hosts that the manager assigns are not known yet.
  if (is_managed &&
      r.fine(
          {"launch.target", "launch.slurm.nodes", "launch.pbs.nodes", "launch.lsf.nodes", "launch.kubernetes.pods"}) &&
      managed_hosts(launch) < 2)
    return r.wrong("launch.elastic", "all ranks run on one host, so no host can be lost while others remain",
                   "remove launch.elastic, or request more hosts");
  if (!is_managed && !launch.has_hosts())
    return r.wrong("launch.elastic", "all ranks run on this host, so no host can be lost while others remain",
                   "remove launch.elastic, or list hosts in launch.hosts");
  if (launch.elastic->min_ranks > launch.ranks)
    r.wrong("launch.elastic.min_ranks", "is greater than launch.ranks, which is " + number(launch.ranks),
            "set it to launch.ranks or less");
  if (r.fine({"train.checkpoint"}) && !r.job.train.saves_state())
    r.wrong("launch.elastic", "the job does not save its state, so the remaining ranks could not resume",
            "add train.checkpoint, e.g. train: {checkpoint: auto}");
}

/// With launch.target, the cluster manager assigns the hosts.
void cluster_manager_assigns_the_hosts(RuleContext& r) {
  const LaunchSpec& launch = r.job.launch;
  if (!r.fine({"launch.target", "launch.ranks"}) || launch.target == Target::hosts) return;
  const std::string manager(to_string(launch.target));
  for (const char* field : {"launch.hosts", "launch.hostfile"})
    if (r.fine({field}) && (std::string(field) == "launch.hosts" ? !launch.hosts.empty() : !launch.hostfile.empty()))
      r.wrong(field, "with launch.target: " + manager + ", " + manager + " assigns the hosts",
              "remove it, or set launch.target: hosts");
  const std::string field = launch.target == Target::kubernetes || launch.target == Target::compose
                                ? "launch.kubernetes.pods"
                                : "launch." + manager + ".nodes";
  const int hosts = managed_hosts(launch);
  if (r.fine({field.c_str()}) && launch.ranks < hosts)
    r.wrong(field, number(hosts) + " is greater than launch.ranks, which is " + number(launch.ranks),
            "each needs at least one rank: set launch.ranks: " + number(hosts));
}

/// Checks launch.machine if it is a list: its machines must fit the ranks.
void machines_fit_the_ranks(RuleContext& r) {
  const LaunchSpec& launch = r.job.launch;
  if (!r.fine({"launch.machine", "launch.ranks", "launch.hosts", "launch.hostfile"})) return;
  const size_t given = launch.machines.size();
  if (given < 2 || given == static_cast<size_t>(launch.ranks)) return;
  if (!launch.hosts.empty() && given == place_ranks(parse_hosts(launch.hosts), launch.ranks).hosts.size()) return;
  const std::string hosts = launch.hosts.empty() ? "" : " or host";
  r.wrong("launch.machine",
          number(static_cast<int64_t>(given)) + " machines, but the job has " + number(launch.ranks) + " ranks",
          "list one machine per rank" + hosts + ", or a single one for all");
}

void spot_notices_have_an_address(RuleContext& r) {
  const LaunchSpec& launch = r.job.launch;
  if (!r.fine({"launch.spot_notices", "launch.spot_address"}) || launch.spot_address.empty()) return;
  if (launch.spot_notices == SpotNotices::none)
    return r.wrong("launch.spot_address", "has no effect, because launch.spot_notices is none",
                   "set launch.spot_notices: aws, gcp or azure");
  const std::string& address = launch.spot_address;
  const size_t colon = address.rfind(':');
  const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
  const bool is_port = !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string::npos &&
                       std::stoi(port) >= 1 && std::stoi(port) <= 65535;
  if (!is_port || colon == 0)
    r.wrong("launch.spot_address", "'" + address + "' is not an address", "write HOST:PORT, such as 127.0.0.1:8080");
}

void trackers_differ(RuleContext& r) {
  const std::vector<TrackerSpec>& all = r.job.track;
  for (size_t i = 1; i < all.size(); ++i) {
    const auto is_same = [&](const TrackerSpec& other) {
      return other.type == all[i].type && other.to == all[i].to && other.command == all[i].command;
    };
    if (std::any_of(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(i), is_same))
      r.wrong(all[i].path, all[i].type + " is there twice", "remove one, or give it another 'to'");
  }
}

void resource_requests_are_well_formed(RuleContext& r) {
  const LaunchSpec& launch = r.job.launch;
  const auto demand = [&](const char* field, const std::string& value, std::string_view pattern, const char* what,
                          const char* hint) {
    if (value.empty() || !r.fine({field}) || has_form(value, pattern)) return;
    r.wrong(field, "'" + value + "' is not " + what, hint);
  };
  demand("launch.slurm.time", launch.slurm.time,
         "\\d+(:\\d+){0,2}|\\d+-\\d+(:\\d+){0,2}|UNLIMITED|INFINITE|unlimited|infinite", "a time limit of Slurm",
         "write minutes, H:MM:SS or D-H: 60, 1:00:00 or 2-12");
  demand("launch.lsf.time", launch.lsf.time, "\\d+(:\\d\\d?)?(/.+)?", "a time limit of LSF",
         "write minutes or H:MM: 60 or 1:00");
  demand("launch.kubernetes.memory", launch.kubernetes.memory, "\\d+(\\.\\d+)?([eE]\\d+|[kMGTPE]i?|Ki|m)?",
         "a size of Kubernetes", "write a number with Mi, Gi or Ti: 8Gi");
  demand("launch.kubernetes.cpu", launch.kubernetes.cpu, "\\d+(\\.\\d+)?m?", "a number of cores for Kubernetes",
         "write cores, or thousandths of a core with m: 4 or 500m");
}

void volumes_have_a_path(RuleContext& r) {
  if (!r.fine({"launch.kubernetes.volumes"})) return;
  for (const VolumeSpec& volume : r.job.launch.kubernetes.volumes)
    if (!volume.path.starts_with("/") || (volume.claim + volume.host_path).empty())
      r.wrong("launch.kubernetes.volumes",
              "'" + volume.claim + volume.host_path + ":" + volume.path + "' is not a valid volume",
              "write CLAIM:/path, or /host/folder:/path");
}

}  // namespace trainctl::rules
