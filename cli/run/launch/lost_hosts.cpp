// launch.elastic: for each host, whether the other hosts have the complete state if it is lost, and how many bytes are
// then transferred.
#include "cli/run/launch/lost_hosts.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "engine/compile/compile.h"
#include "engine/compile/rank_classes.h"
#include "engine/train/checkpoint/cover.h"
#include "engine/train/checkpoint/state_image.h"
#include "launcher/cluster.h"

namespace trainctl {
namespace {

/// Largest number of ranks, since the loss of each host compares the states of all others.
constexpr int kMostListedRanks = 128;

std::vector<SafetensorsEntry> state_of_rank(const Program& program) {
  const StateImage image(program, StateShare::local);
  if (image.empty()) return {};
  const std::string& head = image.head();
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(head.data()), head.size());
  return parse_safetensors_header(bytes, image.bytes(), "the state of rank " + std::to_string(program.rank)).entries;
}

}  // namespace

nlohmann::ordered_json lost_hosts_report(const PlannedJob& job) {
  nlohmann::ordered_json losses;
  if (!job.spec.launch.elastic || !job.spec.launch.has_hosts()) return losses;
  const Cluster cluster = several_hosts(job.spec);
  if (cluster.num_ranks() > kMostListedRanks) return losses;
  std::vector<std::vector<SafetensorsEntry>> states;
  StateCompiler programs(job.graph, job.plan, job.cost);
  for (const RankPlace& place : cluster.places)
    states.push_back(
        state_of_rank(of_process(programs.compile(rank_of_program(job.plan, place.rank)), job.plan, place.rank)));
  losses = nlohmann::ordered_json::array();
  for (const RankPlace& lost : cluster.places) {
    if (lost.local_rank != 0) continue;
    std::vector<std::vector<SafetensorsEntry>> left;
    for (const RankPlace& place : cluster.places)
      if (place.host_number != lost.host_number) left.push_back(states[static_cast<size_t>(place.rank)]);
    const Cover cover = cover_state(job, left);
    nlohmann::ordered_json row = {{"host", lost.host}, {"covered", cover.missing.empty()}};
    if (cover.missing.empty())
      row["bytes"] = cover.bytes * cluster.num_hosts();  // to the launcher, and to each remaining host
    else
      row["missing"] = cover.missing;
    losses.push_back(std::move(row));
  }
  return losses;
}

bool is_each_lost_host_covered(const PlannedJob& job) {
  const nlohmann::ordered_json losses = lost_hosts_report(job);
  return losses.is_array() &&
         std::all_of(losses.begin(), losses.end(), [](const auto& row) { return row["covered"] == true; });
}

}  // namespace trainctl
