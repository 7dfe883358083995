// Both ends of every channel and all members of every group must tell the same story.
#include <algorithm>
#include <map>

#include "engine/compile/verify.h"

namespace trainctl {
namespace {

/// Where an instruction stands.
struct Place {
  int rank = -1, index = -1;
};

const Instruction& at(const std::vector<Program>& programs, const Place& place) {
  return programs[place.rank].instructions[place.index];
}

struct Channel {
  std::vector<Place> sends, recvs;
};

std::string micro_batch_text(const Instruction& i) {
  return i.micro_batch < 0 ? "" : " of micro-batch " + std::to_string(i.micro_batch);
}

void verify_pair(const std::vector<Program>& programs, const Place& send, const Place& recv, Faults& faults) {
  const Instruction& s = at(programs, send);
  const Instruction& r = at(programs, recv);
  const Operand& from = s.inputs[0];
  const Operand& to = r.outputs[0];
  const std::string told = r.name + micro_batch_text(r) + " from rank " + std::to_string(send.rank) +
                           ": what comes is " + s.name + micro_batch_text(s) + ", its instruction " +
                           std::to_string(send.index);
  if (from.bytes() != to.bytes()) {
    faults.push_back(
        {recv.rank, recv.index,
         told + ", of " + std::to_string(from.bytes()) + " bytes instead of " + std::to_string(to.bytes())});
  } else if (from.tensor != to.tensor && s.name.substr(4) != r.name.substr(4)) {
    faults.push_back({recv.rank, recv.index, told});
  } else if (s.micro_batch != r.micro_batch) {
    faults.push_back({recv.rank, recv.index, told});
  }
}

/// What must agree between members of a group.
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

void verify_group(const std::vector<Program>& programs, const std::vector<int>& ranks,
                  const std::map<int, std::vector<Place>>& by_rank, Faults& faults) {
  static const std::vector<Place> kNone;
  const auto of = [&](int rank) -> const std::vector<Place>& {
    const auto found = by_rank.find(rank);
    return found == by_rank.end() ? kNone : found->second;
  };
  const int first = ranks.front();
  for (int rank : ranks) {
    const std::vector<Place>&mine = of(rank), &theirs = of(first);
    for (size_t k = 0; k < std::max(mine.size(), theirs.size()); ++k) {
      const std::string group = ", number " + std::to_string(k) + " of group " + group_text(ranks);
      if (k >= mine.size()) {
        faults.push_back(
            {first, theirs[k].index,
             story(at(programs, theirs[k])) + group + ": rank " + std::to_string(rank) + " never issues it"});
        break;
      }
      if (k >= theirs.size()) {
        faults.push_back(
            {rank, mine[k].index,
             story(at(programs, mine[k])) + group + ": rank " + std::to_string(first) + " never issues it"});
        break;
      }
      const std::string a = story(at(programs, mine[k])), b = story(at(programs, theirs[k]));
      if (a == b) continue;
      faults.push_back({rank, mine[k].index,
                        a + group + ": rank " + std::to_string(first) + " issues " + b + " there, its instruction " +
                            std::to_string(theirs[k].index)});
      break;
    }
  }
}

/// Groups are opened together: one that a member does not have would never open.
void verify_membership(const std::vector<Program>& programs, Faults& faults) {
  for (const Program& p : programs) {
    for (const std::vector<int>& ranks : p.groups) {
      for (int member : ranks) {
        const auto& theirs = programs[member].groups;
        if (std::find(theirs.begin(), theirs.end(), ranks) != theirs.end()) continue;
        faults.push_back(
            {p.rank, -1,
             "group " + group_text(ranks) + ": rank " + std::to_string(member) + " is in it but does not know it"});
      }
    }
  }
}

}  // namespace

void verify_messages(const std::vector<Program>& programs, Faults& faults) {
  std::map<std::pair<int, int>, Channel> channels;
  for (const Program& p : programs) {
    for (int i = 0; i < static_cast<int>(p.instructions.size()); ++i) {
      const Instruction& code = p.instructions[i];
      if (code.opcode == Opcode::send) channels[{p.rank, code.peer}].sends.push_back({p.rank, i});
      if (code.opcode == Opcode::recv) channels[{code.peer, p.rank}].recvs.push_back({p.rank, i});
    }
  }
  for (const auto& [ranks, channel] : channels) {
    const auto& [from, to] = ranks;
    const size_t common = std::min(channel.sends.size(), channel.recvs.size());
    for (size_t k = 0; k < common; ++k) verify_pair(programs, channel.sends[k], channel.recvs[k], faults);
    for (size_t k = common; k < channel.sends.size(); ++k) {
      const Instruction& code = at(programs, channel.sends[k]);
      faults.push_back({from, channel.sends[k].index,
                        code.name + micro_batch_text(code) + " to rank " + std::to_string(to) + ": rank " +
                            std::to_string(to) + " has no recv left for it"});
    }
    for (size_t k = common; k < channel.recvs.size(); ++k) {
      const Instruction& code = at(programs, channel.recvs[k]);
      faults.push_back({to, channel.recvs[k].index,
                        code.name + micro_batch_text(code) + " from rank " + std::to_string(from) + ": rank " +
                            std::to_string(from) + " never sends it"});
    }
  }
}

void verify_collectives(const std::vector<Program>& programs, Faults& faults) {
  verify_membership(programs, faults);
  std::map<std::vector<int>, std::map<int, std::vector<Place>>> groups;
  for (const Program& p : programs) {
    for (int i = 0; i < static_cast<int>(p.instructions.size()); ++i) {
      const Instruction& code = p.instructions[i];
      if (code.opcode == Opcode::collective) groups[p.groups[code.group]][p.rank].push_back({p.rank, i});
    }
  }
  for (const auto& [ranks, by_rank] : groups) verify_group(programs, ranks, by_rank, faults);
}

}  // namespace trainctl
