// Bindings and threads, as data and as a table.
#include "cli/text/launch_report.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/text/table.h"
#include "engine/base/ranges.h"
#include "engine/base/text.h"
#include "engine/compile/report/host_traffic.h"
#include "launcher/binding.h"
#include "launcher/live_status.h"

namespace trainctl {

using Json = nlohmann::ordered_json;

namespace {

/// OMP_NUM_THREADS of the job or of our environment, which takes precedence over the binding's threads; 0: unset.
int threads_given(const JobSpec& spec) {
  const auto own = spec.env.find("OMP_NUM_THREADS");
  const char* inherited = std::getenv("OMP_NUM_THREADS");
  if (own != spec.env.end()) return std::max(0, std::atoi(own->second.c_str()));
  return inherited == nullptr ? 0 : std::max(0, std::atoi(inherited));
}

std::string count(int64_t number, const std::string& what) {
  return with_commas(number) + " " + what + (number == 1 ? "" : "s");
}

}  // namespace

namespace {

/// Omits the hosts' cores, which are known only on the hosts.
Json hosts_report(const JobSpec& spec) {
  Json hosts = Json::array();
  std::vector<int> ranks;
  const Cluster cluster = several_hosts(spec);
  for (const RankPlace& place : cluster.places) {
    ranks.push_back(place.rank);
    if (place.local_rank + 1 < place.local_ranks) continue;
    hosts.push_back({{"host", place.host}, {"ranks", range_text(ranks)}});
    ranks.clear();
  }
  Json report = {
      {"bind", std::string(to_string(spec.launch.bind))}, {"max_restarts", spec.launch.max_restarts}, {"hosts", hosts}};
  if (!spec.launch.copy.empty()) report["copy"] = spec.launch.copy;
  return report;
}

/// The number of each rank's host.
std::vector<int> host_numbers(const Cluster& cluster) {
  std::vector<int> numbers;
  for (const RankPlace& place : cluster.places) numbers.push_back(place.host_number);
  return numbers;
}

std::string traffic_table(const Json& traffic, size_t width) {
  Table table({"purpose", "kind", ">bytes within hosts", ">between hosts"});
  for (const Json& row : traffic["rows"])
    table.add({row["purpose"].get<std::string>(), row["kind"].get<std::string>(),
               with_commas(row["within"].get<int64_t>()), with_commas(row["between"].get<int64_t>())});
  table.add({"all", "", with_commas(traffic["within"].get<int64_t>()), with_commas(traffic["between"].get<int64_t>())});
  return "\ntraffic per step\n" + table.str(2, width);
}

/// Table for launch.elastic (cli/run/launch/lost_hosts.h).
std::string losses_table(const Json& losses, size_t width) {
  Table table({"lost host", "resume from", ">bytes moved"});
  for (const Json& row : losses)
    table.add({row["host"].get<std::string>(),
               row["covered"].get<bool>() ? "memory of the other hosts"
                                          : "newest checkpoint: no other host has " + row["missing"].get<std::string>(),
               row["covered"].get<bool>() ? with_commas(row["bytes"].get<int64_t>()) : ""});
  return "\nif a host is lost\n" + table.str(2, width);
}

std::string copies_line(const Json& report) {
  if (!report.contains("copy")) return "";
  return "  copied to each host: " + join(report["copy"].get<std::vector<std::string>>()) + "\n";
}

std::string restarts_line(const Json& report) {
  const int restarts = report["max_restarts"];
  return restarts > 0 ? "  if a rank fails, all ranks restart, at most " + count(restarts, "time") + "\n" : "";
}

}  // namespace

Json launch_report(const JobSpec& spec) {
  if (spec.launch.has_hosts()) return hosts_report(spec);
  const std::vector<RankBinding> bound =
      bindings(one_host(spec.launch.ranks, spec.servers()), read_topology(), spec.launch.bind);
  const int threads = threads_given(spec);
  std::map<std::vector<int>, size_t> known;  // CPUs, then threads -> index in `alike`
  std::vector<std::pair<std::vector<int>, std::vector<int>>> alike;
  for (size_t rank = 0; rank < bound.size(); ++rank) {
    std::vector<int> place = bound[rank].cpus;
    place.push_back(threads > 0 ? threads : bound[rank].threads);
    const auto [entry, is_new] = known.try_emplace(place, alike.size());
    if (is_new) alike.push_back({place, {}});
    alike[entry->second].second.push_back(static_cast<int>(rank));
  }
  Json ranks = Json::array();
  for (const auto& [place, all] : alike)
    ranks.push_back({{"ranks", range_text(all)},
                     {"cpus", std::vector<int>(place.begin(), place.end() - 1)},
                     {"threads", place.back()}});
  Json report = {{"bind", std::string(to_string(spec.launch.bind))},
                 {"max_restarts", spec.launch.max_restarts},
                 {"ranks", std::move(ranks)}};
  if (spec.servers() > 0) report["workers"] = spec.launch.ranks;
  return report;
}

Json launch_report(const JobSpec& spec, const RankClasses& classes) {
  Json report = launch_report(spec);
  if (!spec.launch.has_hosts() || spec.launch.comm == "gloo") return report;
  HostTraffic all;
  Json rows = Json::array();
  for (const auto& [what, traffic] : traffic_of_step(classes, host_numbers(several_hosts(spec)))) {
    all += traffic;
    rows.push_back(
        {{"purpose", what.first}, {"kind", what.second}, {"within", traffic.within}, {"between", traffic.between}});
  }
  report["traffic"] = {{"within", all.within}, {"between", all.between}, {"rows", std::move(rows)}};
  return report;
}

std::string render_launch(const Json& report, size_t width) {
  if (report.contains("hosts")) {
    Table hosts({"host", "ranks"});
    for (const Json& row : report["hosts"])
      hosts.add({row["host"].get<std::string>(), row["ranks"].get<std::string>()});
    return "\nprocesses on " + count(static_cast<int64_t>(report["hosts"].size()), "host") + "\n" +
           hosts.str(2, width) + copies_line(report) + restarts_line(report) +
           (report.contains("traffic") ? traffic_table(report["traffic"], width) : "") +
           (report.contains("losses") ? losses_table(report["losses"], width) : "");
  }
  Table table({"ranks", ">threads", "bound to"});
  const RankNames names{report.value("workers", RankNames{}.workers)};
  for (const Json& row : report["ranks"]) {
    const RankBinding binding{row["cpus"].get<std::vector<int>>(), row["threads"].get<int>()};
    table.add({names.numbers(numbers_of(row["ranks"].get<std::string>())), std::to_string(binding.threads),
               describe(binding)});
  }
  return "\nprocesses on this host\n" + table.str(2, width) + restarts_line(report);
}

Json command_report(const JobSpec& spec) {
  Json names = Json::array();
  for (const auto& [name, value] : spec.env) names.push_back(name);
  return {{"job", spec.name},        {"ranks", spec.launch.ranks},
          {"command", spec.command}, {"working_dir", spec.working_dir},
          {"env", std::move(names)}, {"launch", launch_report(spec)}};
}

std::string render_command(const Json& report, size_t width) {
  const auto names = report["env"].get<std::vector<std::string>>();
  return report["job"].get<std::string>() + ": " + count(report["ranks"].get<int>(), "rank") + " of\n  " +
         shell_words(report["command"].get<std::vector<std::string>>()) + "\n  in " +
         report["working_dir"].get<std::string>() + "\n" + (names.empty() ? "" : "  with " + join(names) + "\n") +
         render_launch(report["launch"], width);
}

std::string shell_words(const std::vector<std::string>& words) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@%";
  std::vector<std::string> quoted;
  for (const std::string& word : words) {
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) {
      quoted.push_back(word);
      continue;
    }
    std::string text = "'";
    for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    quoted.push_back(text + "'");
  }
  return join(quoted, " ");
}

}  // namespace trainctl
