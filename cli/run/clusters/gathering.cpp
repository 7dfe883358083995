// Determines the hosts on which `trainctl run` starts ranks when a cluster manager has started this process.
#include "cli/run/clusters/gathering.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/run/saves/checkpoints.h"
#include "engine/base/error.h"
#include "engine/base/json_field.h"
#include "engine/base/text.h"
#include "launcher/clusters/pmi.h"
#include "launcher/clusters/pmix.h"
#include "launcher/clusters/pods.h"
#include "launcher/clusters/remote_listener.h"
#include "launcher/clusters/srun.h"
#include "launcher/protocol.h"
#include "launcher/rank_error.h"
#include "launcher/run_directory.h"

namespace trainctl {
namespace {

using Report = std::function<void(const std::string&)>;

using clusters::ListenerAddress;
using clusters::Manager;
using clusters::StartedBy;

constexpr const char* kClusterFile = "cluster.json";
/// Pods start after their images have been pulled, and their names resolve even later.
constexpr double kPodsSeconds = 900, kProcessesSeconds = 60;
constexpr useconds_t kRetryMicroseconds = 250'000;
/// The user is notified of listeners that take longer.
constexpr double kLateSeconds = 4.5;

/// Overrides that set the job's hosts. A single host needs no agents.
std::vector<std::string> host_overrides(const std::vector<std::string>& names) {
  if (names.size() < 2) return {"launch.target=hosts"};
  return {"launch.target=hosts", "launch.hosts=[" + join(names) + "]"};
}

Gathering by_slurm(const StartedBy& by, const JobSpec& job) {
  Gathering gathering;
  if (job.launch.target != Target::slurm && by.count == 1) {
    if (by.hosts.size() > 1)
      gathering.notice = "Slurm job " + by.job + " has " + std::to_string(by.hosts.size()) +
                         " nodes, but the ranks run only on this one; use launch.target=slurm to use all nodes";
    return gathering;
  }
  gathering.overrides = host_overrides(by.hosts);
  if (by.hosts.size() > 1) gathering.transport = clusters::srun_transport(by.job);
  return gathering;
}

/// PBS and LSF: other hosts are reached by launch.ssh.
Gathering by_queue(const StartedBy& by, const JobSpec& job) {
  Gathering gathering;
  if (job.launch.target == Target::pbs || job.launch.target == Target::lsf) {
    gathering.overrides = host_overrides(by.hosts);
  } else if (by.hosts.size() > 1) {
    gathering.notice =
        "the " + by.name + " job has " + std::to_string(by.hosts.size()) +
        " hosts, but the ranks run only on this one; use launch.target=" + (by.name == "PBS" ? "pbs" : "lsf") +
        " to use all hosts";
  }
  return gathering;
}

/// Waits for all listeners. Returns this host's address on the route to the last. Throws EnvError that names the
/// others.
std::string await_listeners(std::vector<ListenerAddress> listeners, const std::string& token, double seconds,
                            const Report& report) {
  const double begin = steady_seconds();
  std::string own_address;
  for (bool is_reported = false;;) {
    std::string faults;
    std::erase_if(listeners, [&](const ListenerAddress& listener) {
      try {
        own_address = clusters::await_listener(listener, token, 0);
        return true;
      } catch (const EnvError& error) {
        faults += (faults.empty() ? "" : "\n") + std::string(error.what());
        return false;
      }
    });
    if (listeners.empty()) return own_address;
    const double waited = steady_seconds() - begin;
    if (waited > seconds) throw EnvError(faults);
    if (waited > kLateSeconds && !std::exchange(is_reported, true)) report("waiting for hosts: " + faults);
    usleep(kRetryMicroseconds);
  }
}

/// Waits until all listeners respond; only then does the first agent start.
Gathering by_listeners(const StartedBy& by, std::vector<ListenerAddress> listeners, std::string own_name,
                       const std::string& token, double seconds, const Report& report) {
  Gathering gathering;
  std::string own_address = await_listeners(listeners, token, seconds, report);
  std::vector<std::string> names{own_name};
  for (const ListenerAddress& listener : listeners) names.push_back(listener.name);
  gathering.overrides = host_overrides(names);
  gathering.end = [listeners, token](int code) { clusters::end_listeners(listeners, token, code); };
  setenv(clusters::kTokenVariable, token.c_str(), 1);  // for `trainctl dial`
  gathering.notice = by.name + ": " + std::to_string(names.size()) + " hosts";
  gathering.transport = clusters::listener_transport(std::move(listeners), std::move(own_name), std::move(own_address));
  return gathering;
}

std::string pods_token() {
  const char* token = std::getenv(clusters::kTokenVariable);
  constexpr size_t kLeast = 32;
  if (token == nullptr || std::string(token).size() < kLeast)
    throw EnvError(std::string(clusters::kTokenVariable) +
                   " has fewer than 32 characters; it must contain the job's token from the Secret of the manifests");
  return token;
}

Gathering by_pods(const StartedBy& by, const Report& report) {
  std::vector<ListenerAddress> listeners;
  for (size_t i = 1; i < by.hosts.size(); ++i)
    listeners.push_back({by.hosts[i], {by.hosts[i]}, clusters::kListenerPort});
  if (listeners.empty()) return {.overrides = host_overrides({by.hosts[0]})};
  return by_listeners(by, std::move(listeners), by.hosts[0], pods_token(), kPodsSeconds, report);
}

// mpirun: one remote-execution listener per host, announced through PMIx or PMI.

constexpr const char* kListenerKey = "trainctl.listener";
constexpr const char* kTokenKey = "trainctl.token";

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "host";
}

struct ListenerExchange {
  int listener = -1;
  std::string token;
  std::vector<ListenerAddress> listeners;  ///< listeners of all hosts except that of process 0
};

std::unique_ptr<clusters::Exchange> exchange_of(const StartedBy& by) {
  if (by.name == clusters::kMpich) return std::make_unique<clusters::Pmi>(by.index);
  return std::make_unique<clusters::Pmix>();
}

/// Called once by all processes. Only the first process of each host has a listener.
ListenerExchange exchange_listeners(const StartedBy& by) {
  const std::unique_ptr<clusters::Exchange> exchange = exchange_of(by);
  ListenerExchange exchanged;
  std::string mine = "{}";
  if (by.local_index == 0 && by.index > 0) {
    exchanged.listener = clusters::listen_at(0);
    mine = clusters::to_json({host_name(), clusters::own_addresses(), clusters::port_of(exchanged.listener)});
  }
  exchange->put(kListenerKey, mine);
  if (by.index == 0) exchange->put(kTokenKey, store::random_token());
  exchange->fence();
  exchanged.token = exchange->get(0, kTokenKey);
  for (int index = 1; by.index == 0 && index < by.count; ++index) {
    if (auto listener = clusters::parse_listener(exchange->get(index, kListenerKey)))
      exchanged.listeners.push_back(std::move(*listener));
  }
  exchange->fence();  // each process stores the values that it has put
  return exchanged;
}

Gathering by_mpirun(const StartedBy& by, const Report& report) {
  ListenerExchange exchanged = exchange_listeners(by);
  if (exchanged.listeners.empty()) return {.overrides = host_overrides({host_name()})};
  std::set<std::string> names{host_name()};
  for (size_t i = 0; i < exchanged.listeners.size(); ++i) {  // containers may all have the same name
    std::string& name = exchanged.listeners[i].name;
    if (!names.insert(name).second) name += "-" + std::to_string(i + 1);
    names.insert(name);
  }
  return by_listeners(by, std::move(exchanged.listeners), host_name(), exchanged.token, kProcessesSeconds, report);
}

}  // namespace

Gathering gather(const StartedBy& by, const JobSpec& job, const Report& report) {
  switch (by.manager) {
    case Manager::slurm:
      return by_slurm(by, job);
    case Manager::queue:
      return by_queue(by, job);
    case Manager::pods:
      return by_pods(by, report);
    case Manager::mpi:
      return by.count > 1 ? by_mpirun(by, report) : Gathering{.overrides = host_overrides({})};
    case Manager::none:
      break;
  }
  return {};
}

int serve_gathering(const StartedBy& by) {
  if (by.manager == Manager::slurm || by.manager == Manager::queue) return kExitDone;  // process 0 reaches the nodes
  if (by.manager == Manager::pods)
    return clusters::serve_remote_execution(clusters::listen_at(clusters::kListenerPort), pods_token());
  const ListenerExchange exchanged = exchange_listeners(by);
  return exchanged.listener < 0 ? kExitDone : clusters::serve_remote_execution(exchanged.listener, exchanged.token);
}

void write_cluster(const StartedBy& by, const std::string& run_folder) {
  if (by.job.empty()) return;
  const std::string manager = by.manager == Manager::pods    ? "kubernetes"
                              : by.manager == Manager::queue ? by.name
                                                             : "slurm";
  std::ofstream(run_folder + "/" + kClusterFile)
      << nlohmann::json{{"manager", manager}, {"job", by.job}, {"restarts", by.restarts}, {"nodes", by.hosts}}.dump()
      << "\n";
}

int earlier_run(const StartedBy& by, const std::string& log_dir) {
  std::vector<int> runs = list_runs(log_dir);
  std::reverse(runs.begin(), runs.end());
  for (const int run : runs) {
    const RunDirectory directory(log_dir, run);
    std::ifstream file(directory.file(kClusterFile));
    const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
    if (!json.is_object() || field_or(json, "job", "") != by.job) continue;
    JobSpec any;
    any.launch.log_dir = log_dir;
    std::vector<std::string> passed_over;
    try {
      find_resume_point(any, {.from = directory.path()}, passed_over);
      return run;
    } catch (const EnvError&) {
      continue;  // the run ended before its first checkpoint
    }
  }
  return 0;
}

}  // namespace trainctl
