// Bindings and threads, as data and as a table.
#include "cli/render/launch_report.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/render/table.h"
#include "engine/base/text.h"
#include "launcher/binding.h"
#include "launcher/live_status.h"

namespace trainctl {

using Json = nlohmann::ordered_json;

namespace {

/// OMP_NUM_THREADS of the job or of our environment goes before what the binding would give; 0: neither says it.
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

Json launch_report(const JobSpec& spec) {
  const std::vector<RankPlace> places = one_host(spec.launch.ranks).places;
  const std::vector<RankBinding> bound = bindings(places, read_topology(), spec.launch.bind);
  const int threads = threads_given(spec);
  Json ranks = Json::array();
  for (size_t rank = 0; rank < bound.size(); ++rank)
    ranks.push_back(
        {{"rank", rank}, {"cpus", bound[rank].cpus}, {"threads", threads > 0 ? threads : bound[rank].threads}});
  return {{"bind", std::string(to_string(spec.launch.bind))},
          {"max_restarts", spec.launch.max_restarts},
          {"ranks", std::move(ranks)}};
}

std::string render_launch(const Json& report) {
  std::vector<std::string> places;
  for (const Json& rank : report["ranks"]) {
    const RankBinding binding{rank["cpus"].get<std::vector<int>>(), rank["threads"].get<int>()};
    places.push_back(std::to_string(binding.threads) + "\n" + describe(binding));
  }
  std::vector<RankGroup> groups = group_ranks(places);
  std::sort(groups.begin(), groups.end(),
            [](const auto& a, const auto& b) { return std::stoi(a.ranks) < std::stoi(b.ranks); });
  Table table({"ranks", ">threads", "bound to"});
  for (const RankGroup& group : groups) {
    const size_t split = group.doing.find('\n');
    table.add({group.ranks, group.doing.substr(0, split), group.doing.substr(split + 1)});
  }
  const int restarts = report["max_restarts"];
  return "\nprocesses on this host\n" + table.str() +
         (restarts > 0 ? "  when one fails, all start again, at most " + count(restarts, "time") + "\n" : "");
}

Json command_report(const JobSpec& spec) {
  Json names = Json::array();
  for (const auto& [name, value] : spec.env) names.push_back(name);
  return {{"job", spec.name},        {"ranks", spec.launch.ranks},
          {"command", spec.command}, {"working_dir", spec.working_dir},
          {"env", std::move(names)}, {"launch", launch_report(spec)}};
}

std::string render_command(const Json& report) {
  const auto names = report["env"].get<std::vector<std::string>>();
  return report["job"].get<std::string>() + ": " + count(report["ranks"].get<int>(), "rank") + " of\n  " +
         shell_words(report["command"].get<std::vector<std::string>>()) + "\n  in " +
         report["working_dir"].get<std::string>() + "\n" + (names.empty() ? "" : "  with " + join(names) + "\n") +
         render_launch(report["launch"]);
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
