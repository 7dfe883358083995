// Checks that the two ends of every channel, and all members of every group, agree.
#include <algorithm>
#include <map>

#include "engine/compile/verify/verify.h"

namespace trainctl {
namespace {

/// Identifies an instruction.
struct MessagePlace {
  int rank = -1, index = -1;
};

const Instruction& at(const RankClasses& classes, const MessagePlace& place) {
  return classes.program_of(place.rank).instructions[static_cast<size_t>(place.index)];
}

std::string micro_batch_text(const Instruction& i) {
  return i.micro_batch < 0 ? "" : " of micro-batch " + std::to_string(i.micro_batch);
}

/// Checks that a send and its receive agree on bytes, tensor and micro-batch.
void verify_pair(const RankClasses& classes, const MessagePlace& send, const MessagePlace& recv, Faults& faults) {
  const Instruction& s = at(classes, send);
  const Instruction& r = at(classes, recv);
  const Operand& from = s.inputs[0];
  const Operand& to = r.outputs[0];
  const std::string mismatch = r.name + micro_batch_text(r) + " from rank " + std::to_string(send.rank) +
                               ": it receives " + s.name + micro_batch_text(s) + ", its instruction " +
                               std::to_string(send.index);
  if (from.bytes() != to.bytes()) {
    faults.push_back(
        {recv.rank, recv.index,
         mismatch + ", of " + std::to_string(from.bytes()) + " bytes instead of " + std::to_string(to.bytes())});
  } else if (from.tensor != to.tensor && s.name.substr(4) != r.name.substr(4)) {
    faults.push_back({recv.rank, recv.index, mismatch});
  } else if (s.micro_batch != r.micro_batch) {
    faults.push_back({recv.rank, recv.index, mismatch});
  }
}

/// Describes a collective by the properties on which all members of its group must agree.
std::string story(const Instruction& i) {
  std::string text = i.name + " (" + std::string(to_string(i.collective)) + ", " + std::to_string(i.inputs[0].bytes()) +
                     " -> " + std::to_string(i.outputs[0].bytes()) + " bytes of " +
                     std::string(to_string(i.inputs[0].dtype));
  if (i.collective == Collective::broadcast) text += ", root " + std::to_string(i.root);
  return text + ")" + micro_batch_text(i);
}

std::string group_text(const std::vector<int>& ranks) {
  std::string text = "{";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ",") + std::to_string(ranks[i]);
  return text + "}";
}

/// Each class's collectives, by group: their indices in its program.
using CallsOfGroups = std::vector<std::map<int, std::vector<int>>>;

CallsOfGroups calls_of_groups(const RankClasses& classes) {
  CallsOfGroups calls(classes.programs.size());
  for (size_t c = 0; c < classes.programs.size(); ++c) {
    const std::vector<Instruction>& instructions = classes.programs[c].instructions;
    for (size_t i = 0; i < instructions.size(); ++i) {
      if (instructions[i].opcode != Opcode::collective) continue;
      const int id = classes.group_ids[c][static_cast<size_t>(instructions[i].group)];
      calls[c][id].push_back(static_cast<int>(i));
    }
  }
  return calls;
}

/// Compares the collectives of all members of a group with those of its first member.
void verify_group(const RankClasses& classes, const CallsOfGroups& calls, const MatchedGroup& group, Faults& faults) {
  static const std::vector<int> kNone;
  const auto of = [&](int rank) -> const std::vector<int>& {
    const auto& by_group = calls[static_cast<size_t>(classes.class_of[static_cast<size_t>(rank)])];
    const auto found = by_group.find(group.id);
    return found == by_group.end() ? kNone : found->second;
  };
  const int first = group.members.front();
  for (int rank : group.members) {
    const std::vector<int>&mine = of(rank), &theirs = of(first);
    for (size_t k = 0; k < std::max(mine.size(), theirs.size()); ++k) {
      const auto number = [&] { return ", number " + std::to_string(k) + " of group " + group_text(group.ranks); };
      if (k >= mine.size()) {
        faults.push_back({first, theirs[k],
                          story(at(classes, {first, theirs[k]})) + number() + ": rank " + std::to_string(rank) +
                              " never issues it"});
        break;
      }
      if (k >= theirs.size()) {
        faults.push_back(
            {rank, mine[k],
             story(at(classes, {rank, mine[k]})) + number() + ": rank " + std::to_string(first) + " never issues it"});
        break;
      }
      const std::string a = story(at(classes, {rank, mine[k]})), b = story(at(classes, {first, theirs[k]}));
      if (a == b) continue;
      faults.push_back({rank, mine[k],
                        a + number() + ": rank " + std::to_string(first) + " issues " + b +
                            " instead, its instruction " + std::to_string(theirs[k])});
      break;
    }
  }
}

/// Checks that every member of a group has the group in its program. All members open a group together: if one member
/// lacks it, the group never opens.
void verify_membership(const RankClasses& classes, const MatchedGroup& group, Faults& faults) {
  const auto knows = [&](int rank) {
    const std::vector<int>& ids = classes.group_ids[static_cast<size_t>(classes.class_of[static_cast<size_t>(rank)])];
    return std::find(ids.begin(), ids.end(), group.id) != ids.end();
  };
  for (int rank : group.members) {
    if (!knows(rank)) continue;
    for (int member : group.members) {
      if (knows(member)) continue;
      faults.push_back({rank, -1,
                        "group " + group_text(group.ranks) + ": rank " + std::to_string(member) +
                            " is a member but does not list "
                            "the group"});
    }
  }
}

}  // namespace

void verify_messages(const RankClasses& classes, Faults& faults) {
  for (const MatchedChannel& channel : matched_channels(classes)) {
    const auto& [from, to, sends, recvs] = channel;
    const size_t common = std::min(sends.size(), recvs.size());
    for (size_t k = 0; k < common; ++k) verify_pair(classes, {from, sends[k]}, {to, recvs[k]}, faults);
    for (size_t k = common; k < sends.size(); ++k) {
      const Instruction& code = at(classes, {from, sends[k]});
      faults.push_back({from, sends[k],
                        code.name + micro_batch_text(code) + " to rank " + std::to_string(to) + ": rank " +
                            std::to_string(to) + " has no matching recv"});
    }
    for (size_t k = common; k < recvs.size(); ++k) {
      const Instruction& code = at(classes, {to, recvs[k]});
      faults.push_back({to, recvs[k],
                        code.name + micro_batch_text(code) + " from rank " + std::to_string(from) + ": rank " +
                            std::to_string(from) + " never sends it"});
    }
  }
}

void verify_collectives(const RankClasses& classes, Faults& faults) {
  const CallsOfGroups calls = calls_of_groups(classes);
  const std::vector<MatchedGroup> groups = matched_groups(classes);
  for (const MatchedGroup& group : groups) verify_membership(classes, group, faults);
  for (const MatchedGroup& group : groups) verify_group(classes, calls, group, faults);
}

}  // namespace trainctl
