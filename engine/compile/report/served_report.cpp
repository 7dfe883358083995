// parameter_server in the report of `trainctl plan`: which server owns which range of each parameter, and what each
// rank pushes and pulls.
#include "engine/compile/report/served_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/base/ranges.h"
#include "engine/compile/report/report.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

/// A range of elements of a parameter that a server owns.
struct OwnedRange {
  int64_t first = 0, count = 0;
};

OwnedRange owned_range(const Program& server, const Variable& v) {
  const Bucket& b = server.buckets[static_cast<size_t>(v.bucket)];
  const int64_t begin = std::max(v.bucket_element, b.shard * b.shard_elements());
  const int64_t end = std::min(v.bucket_element + num_elements(v.shape), (b.shard + 1) * b.shard_elements());
  return {begin - v.bucket_element, std::max<int64_t>(end - begin, 0)};
}

Json holds_json(const Program& server) {
  Json holds = Json::array();
  for (const Variable& v : server.variables)
    if (const OwnedRange range = owned_range(server, v); range.count > 0)
      holds.push_back(
          {{"tensor", v.name}, {"first", range.first}, {"elements", range.count}, {"of", num_elements(v.shape)}});
  return holds;
}

/// Compares N workers with S parameter servers to N workers that all_reduce the same W bytes. If all links are equal,
/// the busiest rank determines the time. In each direction, a rank sends 2 (N-1)/N W bytes in an all_reduce, while with
/// servers a server sends N/S W bytes and a worker W. The rows of the table are for 1, 2, 4, … servers, for `count`
/// servers, and for the smallest number of servers that is as fast as an all_reduce.
Json rates_beside_all_reduce(int workers, int count) {
  const double all_reduce = 2.0 * (workers - 1) / workers;
  const auto rate = [&](int servers) { return all_reduce / std::max(1.0, static_cast<double>(workers) / servers); };
  std::set<int> counts = {count};
  for (int servers = 1; servers <= workers; servers *= 2) counts.insert(servers);
  for (int servers = 1; servers <= workers; ++servers) {
    if (rate(servers) < 1) continue;
    counts.insert(servers);
    break;
  }
  Json rows = Json::array();
  for (const int servers : counts) rows.push_back({{"servers", servers}, {"rate", rate(servers)}});
  return rows;
}

/// Bytes of a step's messages with this opcode and purpose.
int64_t bytes_of(const Program& program, Opcode opcode, Purpose purpose) {
  int64_t bytes = 0;
  for (const Instruction& i : program.instructions)
    if (i.opcode == opcode && i.purpose == purpose) bytes += i.bytes();
  return bytes;
}

}  // namespace

int64_t owned_elements(const Program& server) {
  int64_t count = 0;
  for (const Variable& v : server.variables) count += owned_range(server, v).count;
  return count;
}

void add_served(Json& report, const RankClasses& classes) {
  Json servers = Json::array(), traffic = Json::array();
  for (size_t c = 0; c < classes.programs.size(); ++c) {
    const Program& p = classes.programs[c];
    if (p.server < 0) {
      traffic.push_back({{"ranks", range_text(classes.ranks[c])},
                         {"pushed", bytes_of(p, Opcode::send, Purpose::gradient)},
                         {"pulled", bytes_of(p, Opcode::recv, Purpose::weights)}});
      continue;
    }
    servers.push_back({{"server", p.server},
                       {"rank", p.rank},
                       {"parameters", owned_elements(p)},
                       {"received", bytes_of(p, Opcode::recv, Purpose::gradient)},
                       {"sent", bytes_of(p, Opcode::send, Purpose::weights)},
                       {"holds", holds_json(p)}});
  }
  const int workers = classes.num_ranks() - static_cast<int>(servers.size()), count = static_cast<int>(servers.size());
  report["servers"] = std::move(servers);
  report["traffic"] = std::move(traffic);
  if (workers > 1) report["servers_beside_all_reduce"] = rates_beside_all_reduce(workers, count);
}

}  // namespace trainctl
