// The bytes that a step moves within hosts and between them, from the programs that run.
#include "engine/compile/report/host_traffic.h"

#include <algorithm>
#include <cmath>

#include "engine/graph/counted_rows.h"
#include "engine/graph/exchanged_bytes.h"

namespace trainctl {
namespace {

/// Maps a layout of a group over hosts (its number of members on each host) to the number of groups with this layout
/// whose first rank is in a given class.
using Layouts = std::map<std::vector<int>, int64_t>;

std::vector<int> layout_of(const std::vector<int>& group, const std::vector<int>& host_of) {
  std::map<int, int> members;
  for (const int rank : group) ++members[host_of[static_cast<size_t>(rank)]];
  std::vector<int> layout;
  for (const auto& [host, count] : members) layout.push_back(count);
  return layout;
}

Layouts layouts_of(const RankClasses& classes, size_t of_class, int group, const std::vector<int>& host_of) {
  Layouts layouts;
  for (const int rank : classes.ranks[of_class]) {
    const std::vector<int> members = classes.group(rank, group);
    if (members.front() == rank) ++layouts[layout_of(members, host_of)];
  }
  return layouts;
}

/// Number of elements of a collective, as a Communicator counts them.
int64_t elements_of(const Instruction& i, int members) {
  const Operand& operand = i.inputs.empty() ? i.outputs[0] : i.inputs[0];
  const int64_t elements = num_elements(operand.shape);
  return i.collective == Collective::reduce_scatter || i.collective == Collective::all_to_all ? elements / members
                                                                                              : elements;
}

}  // namespace

HostTraffic traffic_of(Collective kind, const std::vector<int>& members, int64_t count, DType dtype) {
  const auto hosts = static_cast<int>(members.size());
  HostTraffic traffic;
  if (hosts == 1) {
    traffic.within = exchanged_bytes(kind, members[0], count, dtype);
    return traffic;
  }
  // Each host has as many places in the exchange as the largest one has members.
  const int64_t places = *std::max_element(members.begin(), members.end());
  int64_t p = 0;
  for (const int of_host : members) p += of_host;
  // A collective over hosts has three parts: a sum or gather within each host, an exchange between hosts, and a
  // broadcast of the result within each host.
  std::pair<Collective, int64_t> first{kind, count}, spread{Collective::broadcast, count};
  int64_t exchanged = count;
  switch (kind) {
    case Collective::all_reduce:
      break;
    case Collective::all_gather:
      exchanged = places * count;
      spread.second = hosts * places * count;
      break;
    case Collective::reduce_scatter:
      first = {Collective::all_reduce, hosts * places * count};
      exchanged = spread.second = places * count;
      break;
    case Collective::all_to_all:
      first = {Collective::all_gather, p * count};
      exchanged = places * places * count;
      spread.second = hosts * places * places * count;
      break;
    case Collective::broadcast:  // on the root's host before the exchange, on the others after it
      first.second = 0;
      break;
  }
  for (const int of_host : members) {
    traffic.within += exchanged_bytes(first.first, of_host, first.second, dtype);
    traffic.within += exchanged_bytes(spread.first, of_host, spread.second, dtype);
  }
  traffic.between = exchanged_bytes(kind, hosts, exchanged, dtype);
  return traffic;
}

HostTraffic traffic_of_rows(const std::vector<int>& members, int64_t count, DType dtype, double share) {
  const double block = static_cast<double>(count * byte_size(dtype)) * share;
  int64_t all = 0, within = 0, between = 0;  // numbers of blocks
  for (const int of_host : members) all += of_host;
  for (const int here : members) {
    // The leader of a host passes on what its other members send to other hosts, and receive from them.
    within += here * (here - 1) + 2 * (here - 1) * (all - here);
    between += here * (all - here);
  }
  return {std::llround(block * static_cast<double>(within)), std::llround(block * static_cast<double>(between))};
}

std::map<std::pair<std::string, std::string>, HostTraffic> traffic_of_step(const RankClasses& classes,
                                                                           const std::vector<int>& host_of) {
  std::map<std::pair<std::string, std::string>, HostTraffic> all;
  for (size_t c = 0; c < classes.programs.size(); ++c) {
    const Program& program = classes.programs[c];
    std::vector<Layouts> layouts;
    for (size_t group = 0; group < program.groups.size(); ++group)
      layouts.push_back(layouts_of(classes, c, static_cast<int>(group), host_of));
    for (const Instruction& i : program.instructions) {
      const std::string purpose(to_string(i.purpose));
      if (i.opcode == Opcode::collective) {
        const auto group = static_cast<size_t>(i.group);
        const int64_t count = elements_of(i, static_cast<int>(program.groups[group].size()));
        const DType dtype = i.outputs.empty() ? i.inputs[0].dtype : i.outputs[0].dtype;
        for (const auto& [members, groups] : layouts[group]) {
          const HostTraffic one = i.attrs.has(kRowElements)
                                      ? traffic_of_rows(members, count, dtype, i.attrs.number(kExpectedShare))
                                      : traffic_of(i.collective, members, count, dtype);
          all[{purpose, std::string(to_string(i.collective))}] += {groups * one.within, groups * one.between};
        }
      }
      if (i.opcode != Opcode::send) continue;
      for (const int rank : classes.ranks[c]) {
        const bool is_within =
            host_of[static_cast<size_t>(rank)] == host_of[static_cast<size_t>(classes.peer(rank, i))];
        const int64_t bytes = i.inputs[0].bytes();
        all[{purpose, "send"}] += is_within ? HostTraffic{bytes, 0} : HostTraffic{0, bytes};
      }
    }
  }
  return all;
}

}  // namespace trainctl
