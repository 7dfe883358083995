// Calls of a group are matched by their number in the step, as the Communicator matches them.
#include "engine/train/profile/waiting.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace trainctl {
namespace {

struct SpanPlace {
  size_t rank, span;
};

using Call = std::tuple<uint32_t, std::vector<int>, int>;  ///< step, group, number
using Channel = std::tuple<uint32_t, int, int, int>;       ///< step, from, to, number

class Matcher {
 public:
  explicit Matcher(std::span<const RankProfile> profiles) : profiles_(profiles) {
    for (size_t rank = 0; rank < profiles.size(); ++rank) sort_in(rank);
  }

  Waiting take() {
    Waiting waiting;
    for (const RankProfile& profile : profiles_) waiting.waited_ns.emplace_back(profile.spans.size(), 0);
    for (const auto& [call, members] : calls_) {
      if (members.size() != std::get<1>(call).size()) continue;
      int64_t last = 0;
      for (const SpanPlace& place : members) last = std::max(last, at(place).begin_ns);
      for (const SpanPlace& place : members) set(waiting, place, last);
    }
    for (const auto& [channel, send] : sends_) {
      const auto recv = recvs_.find(channel);
      if (recv == recvs_.end()) continue;
      waiting.messages.push_back({send.rank, send.span, recv->second.rank, recv->second.span});
      set(waiting, recv->second, at(send).begin_ns);
      // A send that ended before its recv began did not wait for it.
      if (at(recv->second).begin_ns < at(send).end_ns) set(waiting, send, at(recv->second).begin_ns);
    }
    return waiting;
  }

 private:
  const TimeSpan& at(const SpanPlace& place) const { return profiles_[place.rank].spans[place.span]; }

  void set(Waiting& waiting, const SpanPlace& place, int64_t arrival) const {
    const TimeSpan& span = at(place);
    waiting.waited_ns[place.rank][place.span] =
        std::clamp<int64_t>(arrival - span.begin_ns, 0, span.end_ns - span.begin_ns);
  }

  /// Adds the spans of a rank to the call or message that they belong to: the n-th call of a group in a step is the
  /// same on all ranks.
  void sort_in(size_t rank) {
    const RankProfile& profile = profiles_[rank];
    std::vector<size_t> order(profile.spans.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      const TimeSpan &x = profile.spans[a], &y = profile.spans[b];
      return std::pair(x.step, x.instruction) < std::pair(y.step, y.instruction);
    });
    std::map<std::pair<uint32_t, std::vector<int>>, int> calls;
    std::map<std::tuple<uint32_t, int, int>, int> sent;
    const int self = profile.program->rank;
    for (const size_t i : order) {
      const TimeSpan& span = profile.spans[i];
      const Instruction& instruction = profile.program->instructions[static_cast<size_t>(span.instruction)];
      if (instruction.opcode == Opcode::collective) {
        const std::vector<int>& group = profile.program->groups[static_cast<size_t>(instruction.group)];
        calls_[{span.step, group, calls[{span.step, group}]++}].push_back({rank, i});
      } else if (instruction.opcode == Opcode::send || instruction.opcode == Opcode::recv) {
        const bool sends = instruction.opcode == Opcode::send;
        const int from = sends ? self : instruction.peer, to = sends ? instruction.peer : self;
        (sends ? sends_ : recvs_)[{span.step, from, to, sent[{span.step, from, to}]++}] = {rank, i};
      }
    }
  }

  std::span<const RankProfile> profiles_;
  std::map<Call, std::vector<SpanPlace>> calls_;
  std::map<Channel, SpanPlace> sends_, recvs_;
};

}  // namespace

Waiting find_waiting(std::span<const RankProfile> profiles) { return Matcher(profiles).take(); }

}  // namespace trainctl
