// The communication of a plan in the report of `trainctl plan`.
#include "engine/compile/report/communication_report.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "engine/base/ranges.h"
#include "engine/compile/report/json_row.h"
#include "engine/compile/report/report.h"
#include "engine/graph/counted_rows.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {

using Json = nlohmann::ordered_json;

namespace {

std::string kind_of(const Instruction& i) {
  return std::string(i.opcode == Opcode::collective ? to_string(i.collective) : to_string(i.opcode));
}

/// Returns the ranks that an instruction involves: the group of a collective, a sender and its peer, or only this rank.
GroupKind joined_by(const RankClasses& classes, size_t of_class, const Instruction& i) {
  const Program& program = classes.programs[of_class];
  if (i.opcode == Opcode::collective)
    return classes.groups[static_cast<size_t>(classes.group_ids[of_class][static_cast<size_t>(i.group)])];
  if (i.opcode != Opcode::send) return {{program.stage}, {}, {}};
  if (const PeerPlace place = classes.peer_place(program, i); !place.ring.empty())
    return {{program.stage}, place.ring, {}};
  if (!classes.has_stage_peer(program, i)) return {{}, {}, {program.rank, i.peer}};
  return {{program.stage, i.peer / classes.mesh.size()}, {}, {}};
}

/// The fields of a collective, send or recv that do not depend on its ranks.
Json call_json(const Instruction& i) {
  Json row =
      json_row("kind", kind_of(i), "name", i.name, "purpose", to_string(i.purpose), "phase",
               i.phase == Phase::forward ? "forward" : "backward", "micro_batch", i.micro_batch, "bytes", i.bytes());
  // If only used rows are sent, "bytes" is the maximum that the collective can move.
  if (i.attrs.has(kExpectedShare))
    row["expected_bytes"] = static_cast<int64_t>(static_cast<double>(i.bytes()) * i.attrs.number(kExpectedShare));
  return row;
}

}  // namespace

int GroupTable::id(const GroupKind& kind, const std::vector<size_t>& of_classes) {
  std::set<int> starts;
  for (size_t c : of_classes)
    for (int rank : classes_.ranks[c]) starts.insert(kind.first(classes_.mesh, rank));
  const Json row = {{"size", kind.size(classes_.mesh)},
                    {"count", starts.size()},
                    {"ranks", range_text(kind.members(classes_.mesh, classes_.ranks[of_classes[0]].front()))},
                    {"starts", range_text({starts.begin(), starts.end()})}};
  const auto [entry, is_new] = places_.try_emplace(row.dump(), static_cast<int>(rows_.size()));
  if (is_new) rows_.push_back(row);
  return entry->second;
}

int GroupTable::id(size_t of_class, const Instruction& collective) {
  const auto number = static_cast<size_t>(classes_.group_ids[of_class][static_cast<size_t>(collective.group)]);
  if (ids_[number] >= 0) return ids_[number];
  std::vector<size_t> having;
  for (size_t c = 0; c < classes_.programs.size(); ++c) {
    const std::vector<int>& theirs = classes_.group_ids[c];
    if (std::find(theirs.begin(), theirs.end(), static_cast<int>(number)) != theirs.end()) having.push_back(c);
  }
  return ids_[number] = id(classes_.groups[number], having);
}

Json redistributions_json(const RankClasses& classes, GroupTable& table) {
  using Key = std::tuple<int, std::string, std::string, std::string, int64_t>;
  std::map<Key, std::map<GroupKind, std::vector<size_t>>> groups;  // kind of group -> the rank classes in it
  std::vector<Key> order;
  for (size_t c = 0; c < classes.programs.size(); ++c) {
    const Program& program = classes.programs[c];
    for (const Instruction& i : program.instructions) {
      const bool first = i.micro_batch <= 0 && !i.recompute;
      const bool moves = (i.purpose == Purpose::redistribute && i.opcode != Opcode::recv) ||
                         (i.purpose == Purpose::statistics && i.opcode == Opcode::collective) ||
                         (i.purpose == Purpose::pipeline && i.opcode == Opcode::send);
      const bool rearranges =
          i.opcode == Opcode::kernel && kernel_of(i) != &copy_slice_kernel;  // packing for a collective
      if (!first || !moves || rearranges) continue;
      const std::string kind = i.opcode == Opcode::kernel ? "slice" : kind_of(i);
      Key key{program.stage, i.name, kind, i.phase == Phase::forward ? "forward" : "backward", i.bytes()};
      if (!groups.contains(key)) order.push_back(key);
      std::vector<size_t>& having = groups[key][joined_by(classes, c, i)];
      if (having.empty() || having.back() != c) having.push_back(c);
    }
  }
  std::map<std::map<GroupKind, std::vector<size_t>>, Json> known;  // few distinct values for many rows
  Json rows = Json::array();
  for (const Key& key : order) {
    const auto& [stage, name, kind, phase, bytes] = key;
    const auto [ids, is_new] = known.try_emplace(groups[key], Json::array());
    for (const auto& [group, having] : groups[key])
      if (is_new) ids->second.push_back(table.id(group, having));
    rows.push_back(
        json_row("stage", stage, "name", name, "kind", kind, "phase", phase, "bytes", bytes, "groups", ids->second));
  }
  return rows;
}

Json communication_totals(const RankClasses& classes) {
  struct Total {
    int64_t calls = 0, bytes = 0;
  };
  std::map<std::tuple<std::string, std::string, size_t>, Total> totals;
  for (size_t c = 0; c < classes.programs.size(); ++c) {
    const Program& program = classes.programs[c];
    std::vector<int64_t> led;  // by group of the program: how many ranks of the class are first in their group
    for (int id : classes.group_ids[c]) {
      const GroupKind& kind = classes.groups[static_cast<size_t>(id)];
      led.push_back(std::count_if(classes.ranks[c].begin(), classes.ranks[c].end(),
                                  [&](int rank) { return kind.first(classes.mesh, rank) == rank; }));
    }
    for (const Instruction& i : program.instructions) {
      const bool copies = i.opcode == Opcode::copy;
      if (!copies && (!communicates(i) || i.opcode == Opcode::recv)) continue;
      const bool collective = i.opcode == Opcode::collective;
      const auto times = collective ? led[static_cast<size_t>(i.group)] : static_cast<int64_t>(classes.ranks[c].size());
      if (times == 0) continue;
      const size_t size = collective ? program.groups[static_cast<size_t>(i.group)].size() : copies ? 1 : 2;
      const std::string kind = copies ? std::string(to_string(i.stream)) : kind_of(i);
      Total& total = totals[{std::string(to_string(i.purpose)), kind, size}];
      total.calls += times;
      total.bytes += times * i.bytes();
    }
  }
  Json rows = Json::array();
  for (const auto& [key, total] : totals)
    rows.push_back({{"purpose", std::get<0>(key)},
                    {"kind", std::get<1>(key)},
                    {"group_size", std::get<2>(key)},
                    {"calls", total.calls},
                    {"bytes", total.bytes}});
  return rows;
}

Json calls_json(const RankClasses& classes, size_t of_class, GroupTable& table) {
  const Program& program = classes.programs[of_class];
  Json calls = Json::array();
  for (const Instruction& i : program.instructions) {
    if (!communicates(i)) continue;
    Json row = call_json(i);
    if (i.opcode == Opcode::collective)
      row["group"] = table.id(of_class, i);
    else if (const PeerPlace place = classes.peer_place(program, i); !place.ring.empty()) {
      row["ring"] = table.id({{program.stage}, place.ring, {}}, {of_class});
      row["distance"] = place.step;
    } else if (place.stage >= 0)
      row["peer_stage"] = i.peer / classes.mesh.size();
    else
      row["peer"] = i.peer;
    calls.push_back(std::move(row));
  }
  return calls;
}

Json communication_json(const Instruction& i, const Program& program) {
  Json row = call_json(i);
  if (i.opcode == Opcode::collective)
    row["group"] = program.groups[i.group];
  else
    row["peer"] = i.peer;
  return row;
}

}  // namespace trainctl
