// Proves that no rank blocks forever, by simulating all ranks at once, without data. The simulation is run twice: with
// the instructions of a rank in list order, and with each stream of a rank on its own. A collective ends when all
// members have arrived, and a recv when its message has been sent. An instruction that waits for a send waits until the
// message has been received.
//
// The ranks of a class advance together: each waits for the peers of all of them. If every class reaches the end this
// way, every single rank can.
#include <algorithm>
#include <array>
#include <map>

#include "engine/compile/verify/verify.h"

namespace trainctl {
namespace {

/// A sequence of instructions of one class that run one after the other: the whole list, or one stream.
struct Lane {
  size_t of_class = 0;
  std::vector<int> indices;
  size_t next = 0;

  bool finished() const { return next == indices.size(); }
  int head() const { return indices[next]; }
};

/// Messages from one class to another.
struct MessageChannel {
  size_t from = 0, to = 0;
  size_t sent = 0, received = 0;
  int sender = -1, receiver = -1;  ///< one rank of each class
};

/// A message's position in its channels: one channel for each class that its peers belong to.
struct Message {
  std::vector<size_t> channels;
  size_t number = 0;  ///< the number of messages before it in the channel
};

class Progress {
 public:
  Progress(const RankClasses& classes, bool by_streams) : classes_(classes), by_streams_(by_streams) {
    for (size_t c = 0; c < classes.programs.size(); ++c) {
      const Program& p = classes.programs[c];
      complete_.emplace_back(p.instructions.size(), false);
      begun_.emplace_back(p.instructions.size(), false);
      messages_.emplace_back();
      std::array<Lane, kStreams> lanes;
      for (int i = 0; i < static_cast<int>(p.instructions.size()); ++i) {
        const int lane = by_streams ? static_cast<int>(p.instructions[i].stream) : 0;
        lanes[lane].indices.push_back(i);
      }
      for (Lane& lane : lanes) {
        lane.of_class = c;
        if (!lane.indices.empty()) lanes_.push_back(std::move(lane));
      }
    }
    for (const MatchedGroup& group : matched_groups(classes)) {
      for (int a : group.members)
        for (int b : group.members) group_classes_[{class_of(a), group.id}][class_of(b)] = b;
    }
    for (const MatchedChannel& met : matched_channels(classes)) {
      const MessageChannel channel{class_of(met.from), class_of(met.to), 0, 0, met.from, met.to};
      note(channel.from, met.sends);
      note(channel.to, met.recvs);
      channels_.push_back(channel);
    }
  }

  /// Lets all lanes advance until none can. Reports each lane that has not reached its end as a deadlock.
  void run(Faults& faults) {
    for (bool moved = true; moved;) {
      moved = false;
      for (Lane& lane : lanes_) {
        while (!lane.finished() && step(lane.of_class, lane.head())) {
          ++lane.next;
          moved = true;
        }
      }
    }
    for (const Lane& lane : lanes_) {
      if (!lane.finished()) faults.push_back({first_rank(lane.of_class), lane.head(), stuck(lane)});
    }
  }

 private:
  size_t class_of(int rank) const { return static_cast<size_t>(classes_.class_of[static_cast<size_t>(rank)]); }
  int first_rank(size_t of_class) const { return classes_.ranks[of_class].front(); }
  const Instruction& code(size_t of_class, int i) const {
    return classes_.programs[of_class].instructions[static_cast<size_t>(i)];
  }

  /// Adds the messages of a channel that is about to be created.
  void note(size_t of_class, const std::vector<int>& indices) {
    for (size_t k = 0; k < indices.size(); ++k) {
      Message& message = messages_[of_class][indices[k]];
      message.channels.push_back(channels_.size());
      message.number = k;
    }
  }

  bool is_complete(size_t of_class, int i) const {
    if (code(of_class, i).opcode != Opcode::send) return complete_[of_class][static_cast<size_t>(i)];
    const Message& message = messages_[of_class].at(i);
    return std::all_of(message.channels.begin(), message.channels.end(),
                       [&](size_t c) { return channels_[c].received > message.number; });
  }

  /// Tries to run the instruction; true if it has run.
  bool step(size_t of_class, int i) {
    const Instruction& now = code(of_class, i);
    for (int w : now.waits) {
      if (!is_complete(of_class, w)) return false;
    }
    if (now.opcode == Opcode::send) {
      for (size_t c : messages_[of_class].at(i).channels) ++channels_[c].sent;
      return true;  // the send is complete when the peer has received the message
    }
    if (now.opcode == Opcode::recv && !receive(messages_[of_class].at(i))) return false;
    if (now.opcode == Opcode::collective && !match_call(of_class, i)) return false;
    complete_[of_class][static_cast<size_t>(i)] = true;
    return true;
  }

  bool receive(const Message& message) {
    for (size_t c : message.channels)
      if (channels_[c].received == channels_[c].sent) return false;
    for (size_t c : message.channels) ++channels_[c].received;
    return true;
  }

  int group_id(size_t of_class, int i) const {
    return classes_.group_ids[of_class][static_cast<size_t>(code(of_class, i).group)];
  }

  /// True if every member has begun this class's current collective of the group.
  bool match_call(size_t of_class, int i) {
    const int id = group_id(of_class, i);
    size_t& mine = arrived_[{of_class, id}];
    if (!begun_[of_class][static_cast<size_t>(i)]) {
      begun_[of_class][static_cast<size_t>(i)] = true;
      ++mine;
    }
    const auto& members = group_classes_.at({of_class, id});
    return std::all_of(members.begin(), members.end(), [&](const auto& member) {
      return arrived_[{member.first, id}] >= mine;
    });
  }

  std::string whereabouts(int rank) const {
    for (const Lane& lane : lanes_) {
      if (lane.of_class == class_of(rank) && !lane.finished())
        return "rank " + std::to_string(rank) + " (at instruction " + std::to_string(lane.head()) + ", " +
               code(lane.of_class, lane.head()).name + ")";
    }
    return "rank " + std::to_string(rank) + " (which has finished)";
  }

  /// Describes what the next instruction of a blocked lane waits for.
  std::string stuck(const Lane& lane) {
    const size_t c = lane.of_class;
    const Instruction& now = code(c, lane.head());
    std::string text =
        std::string("deadlock when run ") + (by_streams_ ? "by streams" : "in list order") + ": " + now.name;
    for (int w : now.waits) {
      if (is_complete(c, w)) continue;
      const Instruction& awaited = code(c, w);
      text += " waits for instruction " + std::to_string(w) + " (" + awaited.name + ")";
      if (awaited.opcode != Opcode::send) return text;
      for (size_t channel : messages_[c].at(w).channels)
        if (channels_[channel].received <= messages_[c].at(w).number)
          return text + " to be received by " + whereabouts(channels_[channel].receiver);
      return text;
    }
    if (now.opcode == Opcode::recv) {
      for (size_t channel : messages_[c].at(lane.head()).channels)
        if (channels_[channel].received == channels_[channel].sent)
          return text + " waits for " + whereabouts(channels_[channel].sender);
    }
    if (now.opcode == Opcode::collective) {
      const int id = group_id(c, lane.head());
      for (const auto& [member, rank] : group_classes_.at({c, id}))
        if (arrived_[{member, id}] < arrived_[{c, id}]) text += " waits for " + whereabouts(rank);
    }
    return text;
  }

  const RankClasses& classes_;
  const bool by_streams_;
  std::vector<Lane> lanes_;
  std::vector<std::vector<bool>> complete_, begun_;  // by class and instruction
  std::vector<MessageChannel> channels_;
  std::vector<std::map<int, Message>> messages_;  // by class and instruction
  std::map<std::pair<size_t, int>, std::map<size_t, int>>
      group_classes_;                                 // by class and group: classes, and a rank of each
  std::map<std::pair<size_t, int>, size_t> arrived_;  // by class and group: collectives begun
};

}  // namespace

void verify_progress(const RankClasses& classes, Faults& faults) {
  const size_t before = faults.size();
  Progress(classes, false).run(faults);
  if (faults.size() == before) Progress(classes, true).run(faults);
}

}  // namespace trainctl
