// One rank's side of the collectives of one segment. A call is one or more rounds:
//
// post buffers -> arrive -> (the last to arrive opens the round) -> share the work -> leave when all is done
//
// The last rank to arrive does small rounds by itself; the others sleep or spin once. Large rounds are cut into chunks.
// Every awake member takes chunks until none is left, so no rank waits for one that has no core.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/runtime/comm/collective_call.h"
#include "engine/runtime/comm/peers.h"
#include "engine/runtime/comm/segment.h"

namespace trainctl::comm {

class CollectiveRunner {
 public:
  CollectiveRunner(const SharedMemory& memory, int rank, int cores, const Peers& peers, Waiter& waiter)
      : segment_(memory.segment()), rank_(rank), cores_(cores), peers_(peers), waiter_(waiter) {}

  /// `ranks` in block order; the same list returns the same number.
  int open_group(const std::vector<int>& ranks);
  int size(int group) { return static_cast<int>(opened(group).ranks.size()); }
  void run(int group, const CollectiveCall& call);

 private:
  struct OpenGroup {
    Group& shared;
    std::span<Member> members;
    std::vector<int> ranks;
    int index;
    uint32_t phase;  ///< the group's phase when the last round of this rank ended
    std::vector<const std::byte*> from;
    std::vector<std::byte*> to;
  };

  OpenGroup& opened(int group);
  bool post(OpenGroup& group, const CollectiveCall& call, int64_t done);
  void take_staged(const OpenGroup& group, const CollectiveCall& call, int64_t done, int64_t round);
  int64_t run_round(OpenGroup& group, const CollectiveCall& call, int64_t moved);
  void open_round(OpenGroup& group, const CollectiveCall& call, int64_t moved);
  void work(OpenGroup& group, const CollectiveCall& call, int64_t moved);
  bool same_call(const Member& a, const Member& b) const;
  CommError different_calls(const OpenGroup& group) const;
  template <typename Ready, typename IsMissing>
  void wait(OpenGroup& group, const CollectiveCall& call, const Ready& ready, const IsMissing& is_missing);

  Segment& segment_;
  int rank_;
  int cores_;
  const Peers& peers_;
  Waiter& waiter_;
  std::vector<OpenGroup> groups_;
};

}  // namespace trainctl::comm
