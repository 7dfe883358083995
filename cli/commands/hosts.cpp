// trainctl hosts: describes the hosts of a job and checks that they can connect to each other. Starts nothing.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/commands/job_arguments.h"
#include "cli/text/table.h"
#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/planning/machine_file.h"
#include "launcher/hosts/probe.h"

namespace trainctl {
namespace {

using hosts::HostsReport;
using hosts::LinkFacts;

/// Largest acceptable clock difference. Logs are ordered by the launcher's clock, so a difference does not affect a
/// run, but it does affect certificates and file times.
constexpr double kClockSeconds = 5;

int ranks_of(const Cluster& cluster, const std::string& host) {
  return static_cast<int>(std::count_if(cluster.places.begin(), cluster.places.end(),
                                        [&](const RankPlace& place) { return place.host == host; }));
}

/// Tables of hosts and links. Terminal escapes in text from hosts are removed.
std::string hosts_table(const HostsReport& report, const Cluster& cluster) {
  Table table({"host", ">ranks", "address", ">cores", ">GPUs", ">memory free", ">disk free", ">clock", "system"});
  for (const hosts::HostFacts& host : report.hosts) {
    const std::string ranks = std::to_string(ranks_of(cluster, host.name));
    if (!host.fault.empty()) {
      table.add_short({host.name, ranks, terminal_text(host.fault)});
      continue;
    }
    table.add({host.name, ranks, printable(host.address), std::to_string(host.cores), std::to_string(host.gpus),
               format_bytes(host.memory_bytes), format_bytes(host.disk_bytes),
               fmt::format("{:+.1f} s", host.clock_seconds), printable(host.system + " " + host.machine)});
  }
  return table.str();
}

std::string links_table(const HostsReport& report) {
  Table table({"from", "to", ">latency", ">bandwidth", ""});
  for (const LinkFacts& link : report.links) {
    if (!link.fault.empty()) {
      table.add({link.from, link.to, "", "", terminal_text(link.fault)});
    } else {
      table.add({link.from, link.to, fmt::format("{:.0f} us", link.latency_seconds * 1e6),
                 fmt::format("{:.2f} GB/s", link.bytes_per_second / 1e9), ""});
    }
  }
  return table.str();
}

std::string report_json(const HostsReport& report) {
  nlohmann::ordered_json json;
  json["hosts"] = nlohmann::ordered_json::array();
  for (const hosts::HostFacts& host : report.hosts) {
    nlohmann::ordered_json entry = {{"host", host.name}};
    if (!host.fault.empty()) {
      entry["fault"] = host.fault;
    } else {
      entry.update({{"address", host.address},
                    {"machine", host.machine},
                    {"system", host.system},
                    {"cores", host.cores},
                    {"gpus", host.gpus},
                    {"memory_bytes", host.memory_bytes},
                    {"disk_bytes", host.disk_bytes},
                    {"clock_seconds", host.clock_seconds}});
    }
    json["hosts"].push_back(std::move(entry));
  }
  json["links"] = nlohmann::ordered_json::array();
  for (const LinkFacts& link : report.links) {
    nlohmann::ordered_json entry = {{"from", link.from}, {"to", link.to}};
    if (!link.fault.empty()) {
      entry["fault"] = link.fault;
    } else {
      entry.update({{"latency_seconds", link.latency_seconds}, {"bytes_per_second", link.bytes_per_second}});
    }
    json["links"].push_back(std::move(entry));
  }
  return json.dump(2) + "\n";
}

/// The job's machine with links between hosts like the slowest of these. The ranks of a host share one link.
Machine joined_machine(const JobSpec& spec, const Cluster& cluster, const HostsReport& report,
                       const std::string& name) {
  int most = 1;
  for (const hosts::HostFacts& host : report.hosts) most = std::max(most, ranks_of(cluster, host.name));
  Machine machine = *machine_of(spec.launch);
  LinkLevel network{.name = "between hosts", .bandwidth = {report.links.front().bytes_per_second}, .latency = {0}};
  for (const LinkFacts& link : report.links) {
    network.bandwidth.value = std::min(network.bandwidth.value, link.bytes_per_second);
    network.latency.value = std::max(network.latency.value, link.latency_seconds);
  }
  network.bandwidth.value /= most;
  machine.source = fmt::format("{}, links of {} hosts measured", machine.source, report.hosts.size());
  machine.name = name;
  machine.devices = most;
  machine.links.resize(1);
  machine.links.front().devices = most;
  machine.links.push_back(network);
  return machine;
}

/// Probes the job's hosts and prints what each has and how fast their links are. With `name`, the links are stored as
/// those of this machine.
int show_hosts(const JobSpec& spec, bool as_json, const std::string& name) {
  if (!spec.launch.has_hosts())
    throw SpecError(spec.position("launch"), "launch.hosts", "the job names no hosts",
                    "set it in the job, or on the command line: launch.hosts='[a, b:4]'");
  const std::string file = name.empty() ? "" : machine_file(name);
  const Cluster cluster = several_hosts(spec);
  const HostsReport report =
      hosts::probe_hosts(cluster, *hosts::transport_of(spec.launch), spec.launch.interface,
                         [](const std::string& line) { std::cerr << terminal_text(line) << std::endl; });
  if (as_json) {
    std::cout << report_json(report);
  } else {
    std::cout << hosts_table(report, cluster);
    if (!report.links.empty()) std::cout << "\n" << links_table(report);
    for (const hosts::HostFacts& host : report.hosts)
      if (std::abs(host.clock_seconds) > kClockSeconds)
        std::cout << "note: the clock of " << host.name << " differs from the clock of this host by "
                  << fmt::format("{:.0f} s\n", std::abs(host.clock_seconds));
  }
  if (!name.empty() && report.fine()) {
    if (report.links.empty())
      throw SpecError({}, "--name", "a single host has no links to measure",
                      "name at least two hosts, or use trainctl calibrate");
    write_machine(joined_machine(spec, cluster, report, name), file);
    std::cerr << "saved as " << file << "\n  next: trainctl plan job.yaml launch.machine=" << name << "\n";
  }
  return report.fine() ? kExitDone : kExitEnv;
}

}  // namespace

void add_hosts_command(CLI::App& app, Action& chosen) {
  struct Options {
    JobArguments job;
    bool json = false;
    std::string name;
  };
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("hosts", "Check that the hosts of a job can connect, and measure their links");
  options->job.add_to(*command);
  command->add_flag("--json", options->json, "Print the results as JSON");
  command->add_option("--name", options->name, "Save launch.machine with the measured links under this name, for plan");
  command->footer(
      R"(Connects to every host of launch.hosts over ssh as a run would, copies this program there if it is not installed, and
queries the host. Then every host connects to every other host. The exit code is 3 if a connection fails.

Examples:
  trainctl hosts job.yaml
  trainctl hosts job.yaml --name lab && trainctl plan job.yaml launch.machine=lab
  trainctl hosts job.yaml launch.hosts='[a, b:4]' --json)");
  command->callback([&chosen, options] {
    chosen = [options] { return show_hosts(options->job.load(), options->json, options->name); };
  });
}

}  // namespace trainctl
