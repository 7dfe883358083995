// Determines which classes of ranks take part in the same groups and channels. Every rank is visited once for each
// group and peer of its class. Groups and channels that join the same classes in the same way carry the same
// communication, so only one of each kind is returned for comparison.
#include <algorithm>
#include <map>
#include <set>

#include "engine/compile/verify/verify.h"

namespace trainctl {
namespace {

size_t class_of(const RankClasses& classes, int rank) {
  return static_cast<size_t>(classes.class_of[static_cast<size_t>(rank)]);
}

/// The first rank of each class among `ranks`.
std::vector<int> first_of_classes(const RankClasses& classes, const std::vector<int>& ranks) {
  std::set<size_t> seen;
  std::vector<int> first;
  for (int rank : ranks)
    if (seen.insert(class_of(classes, rank)).second) first.push_back(rank);
  return first;
}

/// A class's messages by peer.
struct Messages {
  std::map<PeerPlace, std::vector<int>> sends, recvs;  ///< indices in its program
};

/// Returns the sends and recvs of each class, grouped by peer.
std::vector<Messages> messages_of(const RankClasses& classes) {
  std::vector<Messages> all;
  for (const Program& program : classes.programs) {
    Messages& messages = all.emplace_back();
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      const Instruction& code = program.instructions[i];
      if (code.opcode != Opcode::send && code.opcode != Opcode::recv) continue;
      auto& by_place = code.opcode == Opcode::send ? messages.sends : messages.recvs;
      by_place[classes.peer_place(program, code)].push_back(static_cast<int>(i));
    }
  }
  return all;
}

/// The messages that `rank` exchanges with its peer.
std::vector<int> with_peer(const RankClasses& classes, const std::map<PeerPlace, std::vector<int>>& by_place, int rank,
                           int peer) {
  std::vector<int> found;
  for (const auto& [place, indices] : by_place)
    if (classes.rank_at(place, rank) == peer) found.insert(found.end(), indices.begin(), indices.end());
  std::sort(found.begin(), found.end());
  return found;
}

/// Channels with equal keys carry the same messages. They connect the same classes of ranks, either within rings of the
/// same axes or between the same two stages.
struct ChannelKey {
  size_t from = 0, to = 0;
  int from_rank = -1, to_rank = -1;  ///< set if the peer of all ranks of the class is one rank
  Axes ring;
  int step = 0;  ///< distance from the sender to the receiver along the ring

  friend auto operator<=>(const ChannelKey&, const ChannelKey&) = default;
};

}  // namespace

/// The groups whose programs must be compared: one for each combination of classes of its members.
std::vector<MatchedGroup> matched_groups(const RankClasses& classes) {
  std::vector<MatchedGroup> met;
  std::set<std::pair<int, int>> seen;                   // group and its first rank
  std::set<std::pair<int, std::vector<size_t>>> known;  // group and the classes of its members
  for (int rank = 0; rank < classes.num_ranks(); ++rank) {
    for (int id : classes.group_ids[class_of(classes, rank)]) {
      const GroupKind& group = classes.groups[static_cast<size_t>(id)];
      if (!seen.emplace(id, group.first(classes.mesh, rank)).second) continue;
      std::vector<int> ranks = group.members(classes.mesh, rank), members = first_of_classes(classes, ranks);
      std::vector<size_t> of_classes;
      for (int member : members) of_classes.push_back(class_of(classes, member));
      if (known.emplace(id, std::move(of_classes)).second) met.push_back({id, std::move(ranks), std::move(members)});
    }
  }
  return met;
}

/// Returns one channel for each way in which ranks of two classes exchange messages, with the sends of one end and the
/// recvs of the other.
std::vector<MatchedChannel> matched_channels(const RankClasses& classes) {
  const std::vector<Messages> messages = messages_of(classes);
  std::map<ChannelKey, std::pair<int, int>> channels;  // and the ranks of one of them
  const auto match = [&](int from, int to, const PeerPlace& place, bool is_send) {
    ChannelKey key{class_of(classes, from),           class_of(classes, to), -1, -1, place.ring,
                   is_send ? place.step : -place.step};
    if (place.rank >= 0) key.from_rank = from, key.to_rank = to;
    channels.try_emplace(std::move(key), from, to);
  };
  for (int rank = 0; rank < classes.num_ranks(); ++rank) {
    const Messages& mine = messages[class_of(classes, rank)];
    for (const auto& [place, sends] : mine.sends) match(rank, classes.rank_at(place, rank), place, true);
    for (const auto& [place, recvs] : mine.recvs) match(classes.rank_at(place, rank), rank, place, false);
  }
  std::vector<MatchedChannel> met;
  for (const auto& [key, ranks] : channels) {
    const auto& [from, to] = ranks;
    met.push_back({from, to, with_peer(classes, messages[class_of(classes, from)].sends, from, to),
                   with_peer(classes, messages[class_of(classes, to)].recvs, to, from)});
  }
  return met;
}

}  // namespace trainctl
