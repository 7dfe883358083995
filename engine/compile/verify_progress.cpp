// Runs all ranks at once, without data: in list order, and stream by stream. A collective ends when all
// members have arrived, a recv when its message has been sent, and a send counts as complete, for whoever
// waits for it, when it has been received.
#include <array>
#include <map>

#include "engine/compile/verify.h"

namespace trainctl {
namespace {

/// Instructions that run one after the other.
struct Lane {
  int rank = 0;
  std::vector<int> indices;
  size_t next = 0;

  bool finished() const { return next == indices.size(); }
  int head() const { return indices[next]; }
};

struct Channel {
  std::vector<int> sent;  ///< indices of the sender's sends
  size_t received = 0;
};

struct Group {
  std::map<int, size_t> arrived;  ///< by rank: collectives begun
};

class Progress {
 public:
  Progress(const std::vector<Program>& programs, bool by_streams) : programs_(programs), by_streams_(by_streams) {
    for (const Program& p : programs) {
      complete_.emplace_back(p.instructions.size(), false);
      begun_.emplace_back(p.instructions.size(), false);
      std::array<Lane, 5> lanes;
      for (int i = 0; i < static_cast<int>(p.instructions.size()); ++i) {
        const int lane = by_streams ? static_cast<int>(p.instructions[i].stream) : 0;
        lanes[lane].indices.push_back(i);
      }
      for (Lane& lane : lanes) {
        lane.rank = p.rank;
        if (!lane.indices.empty()) lanes_.push_back(std::move(lane));
      }
      for (const std::vector<int>& ranks : p.groups) groups_[ranks];
    }
  }

  void run(Faults& faults) {
    for (bool moved = true; moved;) {
      moved = false;
      for (Lane& lane : lanes_) {
        while (!lane.finished() && step(lane.rank, lane.head())) {
          ++lane.next;
          moved = true;
        }
      }
    }
    for (const Lane& lane : lanes_) {
      if (!lane.finished()) faults.push_back({lane.rank, lane.head(), stuck(lane)});
    }
  }

 private:
  const Instruction& code(int rank, int i) const { return programs_[rank].instructions[i]; }

  /// Whether the instruction has run, now.
  bool step(int rank, int i) {
    const Instruction& now = code(rank, i);
    for (int w : now.waits) {
      if (!complete_[rank][w]) return false;
    }
    switch (now.opcode) {
      case Opcode::send:
        channels_[{rank, now.peer}].sent.push_back(i);
        return true;  // complete once received
      case Opcode::recv: {
        Channel& channel = channels_[{now.peer, rank}];
        if (channel.received == channel.sent.size()) return false;
        complete_[now.peer][channel.sent[channel.received++]] = true;
        break;
      }
      case Opcode::collective:
        if (!meet(rank, i)) return false;
        break;
      default:
        break;
    }
    complete_[rank][i] = true;
    return true;
  }

  /// Whether everybody has begun this rank's current collective of the group.
  bool meet(int rank, int i) {
    Group& group = groups_.at(ranks_of(rank, i));
    if (!begun_[rank][i]) {
      begun_[rank][i] = true;
      ++group.arrived[rank];
    }
    for (int member : ranks_of(rank, i)) {
      if (group.arrived[member] < group.arrived[rank]) return false;
    }
    return true;
  }

  const std::vector<int>& ranks_of(int rank, int i) const { return programs_[rank].groups[code(rank, i).group]; }

  std::string whereabouts(int rank) const {
    for (const Lane& lane : lanes_) {
      if (lane.rank == rank && !lane.finished())
        return "rank " + std::to_string(rank) + " (at instruction " + std::to_string(lane.head()) + ", " +
               code(rank, lane.head()).name + ")";
    }
    return "rank " + std::to_string(rank) + " (which has ended)";
  }

  std::string stuck(const Lane& lane) {
    const Instruction& now = code(lane.rank, lane.head());
    std::string text = std::string("deadlock, run ") + (by_streams_ ? "by streams" : "in list order") + ": " + now.name;
    for (int w : now.waits) {
      if (complete_[lane.rank][w]) continue;
      const Instruction& awaited = code(lane.rank, w);
      text += " waits for instruction " + std::to_string(w) + " (" + awaited.name + ")";
      if (awaited.opcode == Opcode::send) text += " to be received by " + whereabouts(awaited.peer);
      return text;
    }
    if (now.opcode == Opcode::recv) return text + " waits for " + whereabouts(now.peer);
    if (now.opcode == Opcode::collective) {
      for (int member : ranks_of(lane.rank, lane.head())) {
        std::map<int, size_t>& arrived = groups_.at(ranks_of(lane.rank, lane.head())).arrived;
        if (arrived[member] < arrived[lane.rank]) text += " waits for " + whereabouts(member);
      }
    }
    return text;
  }

  const std::vector<Program>& programs_;
  const bool by_streams_;
  std::vector<Lane> lanes_;
  std::vector<std::vector<bool>> complete_, begun_;  // by rank and instruction
  std::map<std::pair<int, int>, Channel> channels_;
  std::map<std::vector<int>, Group> groups_;
};

}  // namespace

void verify_progress(const std::vector<Program>& programs, Faults& faults) {
  const size_t before = faults.size();
  Progress(programs, false).run(faults);
  if (faults.size() == before) Progress(programs, true).run(faults);
}

}  // namespace trainctl
