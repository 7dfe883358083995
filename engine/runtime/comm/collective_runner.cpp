// One rank's side of the collectives of one segment. A group's phase is even between rounds and odd while one is open:
// 2k -> 2k+1 (open) -> 2k+2 (done), or straight to 2k+2 if the last to arrive did all the work.
#include "engine/runtime/comm/collective_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/base/error.h"

namespace trainctl::comm {
namespace {

// The last rank to arrive does rounds of up to this size by itself, because handing half of the work to a rank that
// spins or sleeps takes as long as moving this many bytes.
constexpr int64_t kAloneBytesSpinning = 32 << 10;
constexpr int64_t kAloneBytesSleeping = 1 << 20;

bool reached(uint32_t phase, uint32_t wanted) { return static_cast<int32_t>(phase - wanted) >= 0; }

/// Returns true if no member reads the in-buffer of member `index`.
bool brings_nothing(const CollectiveCall& call, int index) {
  return call.op == CollectiveOp::broadcast && index != call.root;
}

}  // namespace

CollectiveRunner::OpenGroup& CollectiveRunner::opened(int group) {
  check(group >= 0 && static_cast<size_t>(group) < groups_.size(), "a group must be opened before it is used");
  return groups_[static_cast<size_t>(group)];
}

int CollectiveRunner::open_group(const std::vector<int>& ranks) {
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].ranks == ranks) return static_cast<int>(i);
  }
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  check(mine != ranks.end(), "a rank may open only groups that it is in");
  for (size_t i = 0; i < ranks.size(); ++i) {
    check(ranks[i] >= 0 && ranks[i] < segment_.num_ranks(), "a group's ranks are ranks of the job");
    check(std::count(ranks.begin(), ranks.end(), ranks[i]) == 1, "a rank is in a group once");
  }
  Group& shared = segment_.open_group(ranks);
  // This rank is in no round of the group, so no round can open or end now: the phase cannot change.
  groups_.push_back({shared, segment_.members(shared), ranks, static_cast<int>(mine - ranks.begin()),
                     shared.phase.load(), std::vector<const std::byte*>(ranks.size()),
                     std::vector<std::byte*>(ranks.size())});
  return static_cast<int>(groups_.size()) - 1;
}

void CollectiveRunner::run(int group_number, const CollectiveCall& call) {
  OpenGroup& group = opened(group_number);
  if (group.ranks.size() == 1) {
    if (call.in != call.out && call.count > 0) {
      std::memcpy(call.out, call.in, static_cast<size_t>(call.count * byte_size(call.dtype)));
    }
    return;
  }
  int64_t done = 0;
  do {
    const bool staged = post(group, call, done);
    const int64_t round = run_round(group, call, done);
    if (staged) take_staged(group, call, done, round);
    done += round;
  } while (done < call.count);
}

/// Publishes this rank's buffers from element `done` on. Returns true if they are outside of the segment, so that the
/// round goes through staging memory.
bool CollectiveRunner::post(OpenGroup& group, const CollectiveCall& call, int64_t done) {
  const int64_t element = byte_size(call.dtype);
  const int64_t left = call.count - done, stride = call.stride > 0 ? call.stride : call.count;
  Member& me = group.members[static_cast<size_t>(group.index)];
  me.op = static_cast<uint8_t>(call.op);
  me.dtype = static_cast<uint8_t>(call.dtype);
  me.root = static_cast<uint16_t>(call.root);
  me.count = left;
  me.in = brings_nothing(call, group.index) ? 0 : segment_.offset_of(call.in, call.in_blocks * stride * element);
  me.out = segment_.offset_of(call.out, call.out_blocks * stride * element);
  if (call.count == 0 || (me.in >= 0 && me.out >= 0)) {
    me.in += done * element;
    me.out += done * element;
    me.stride = stride;
    me.limit = left;
    return false;
  }
  const std::span<std::byte> area = segment_.collective_staging(rank_);
  const int64_t room = static_cast<int64_t>(area.size()) / ((call.in_blocks + call.out_blocks) * element) / 16 * 16;
  me.limit = me.stride = std::min(room, left);
  me.in = segment_.offset_of(area.data(), 0);
  me.out = me.in + call.in_blocks * me.stride * element;
  if (!brings_nothing(call, group.index)) {
    for (int64_t block = 0; block < call.in_blocks; ++block) {
      std::memcpy(area.data() + block * me.stride * element, call.in + (block * stride + done) * element,
                  static_cast<size_t>(me.limit * element));
    }
  }
  return true;
}

void CollectiveRunner::take_staged(const OpenGroup& group, const CollectiveCall& call, int64_t done, int64_t round) {
  const int64_t element = byte_size(call.dtype);
  const int64_t stride = call.stride > 0 ? call.stride : call.count;
  const Member& me = group.members[static_cast<size_t>(group.index)];
  for (int64_t block = 0; block < call.out_blocks; ++block) {
    std::memcpy(call.out + (block * stride + done) * element, segment_.at(me.out + block * me.stride * element),
                static_cast<size_t>(round * element));
  }
}

/// Takes part in one round, and returns the number of elements that it moved. `moved`: those of the rounds before.
int64_t CollectiveRunner::run_round(OpenGroup& group, const CollectiveCall& call, int64_t moved) {
  Group& shared = group.shared;
  const uint32_t open = group.phase + 1, done = group.phase + 2;
  Member& me = group.members[static_cast<size_t>(group.index)];
  me.arrived.store(done, std::memory_order_relaxed);
  if (shared.arrivals.fetch_add(1, std::memory_order_acq_rel) + 1 == shared.size) {
    open_round(group, call, moved);
  } else {
    wait(
        group, call, [&] { return reached(shared.phase.load(), open); },
        [&](const Member& member) { return member.arrived.load(std::memory_order_relaxed) != done; });
  }
  if (shared.phase.load() == open) {
    work(group, call, moved);
    wait(
        group, call, [&] { return reached(shared.phase.load(), done); },
        [](const Member& member) { return member.working.load(std::memory_order_relaxed) != 0; });
  }
  group.phase = done;
  if (shared.round < 0) throw different_calls(group);
  return shared.round;
}

/// The steps must agree too: a rank that skipped a collective may be matched with a later, identical one of the others.
bool CollectiveRunner::same_call(const Member& a, const Member& b) const {
  const auto step = [&](const Member& member) {
    return segment_.status(member.rank).step.load(std::memory_order_relaxed);
  };
  return a.op == b.op && a.dtype == b.dtype && a.root == b.root && a.count == b.count && step(a) == step(b);
}

/// Names the members whose call differs from the majority's; of two members, the one that is further ahead.
CommError CollectiveRunner::different_calls(const OpenGroup& group) const {
  const auto describe_call = [&](const Member& member) {
    return fmt::format("{} of {} {} at step {}", to_string(static_cast<CollectiveOp>(member.op)), member.count,
                       to_string(static_cast<DType>(member.dtype)), segment_.status(member.rank).step.load());
  };
  const Member* usual = nullptr;
  std::pair<int64_t, int64_t> best;
  for (const Member& member : group.members) {
    const auto alike = std::count_if(group.members.begin(), group.members.end(),
                                     [&](const Member& other) { return same_call(member, other); });
    const std::pair<int64_t, int64_t> rating{alike, -int64_t{segment_.status(member.rank).step.load()}};
    if (usual == nullptr || rating > best) {
      usual = &member;
      best = rating;
    }
  }
  std::string text = fmt::format("the collectives of ranks {} do not match: most ranks call {}",
                                 format_ranks(group.ranks), describe_call(*usual));
  std::vector<int> odd;
  for (const Member& member : group.members) {
    if (same_call(member, *usual)) continue;
    if (member.rank != rank_) odd.push_back(member.rank);
    text += fmt::format("; rank {} calls {}", member.rank, describe_call(member));
  }
  CommError error(text + "; it skipped a collective, or runs a different program");
  // The call of this rank may itself differ from the majority; then no other rank is to blame.
  if (same_call(group.members[static_cast<size_t>(group.index)], *usual)) error.missing = odd;
  return error;
}

/// Called by the last rank to arrive. Determines the size of the round; does a small one itself, and opens a large one
/// to all.
void CollectiveRunner::open_round(OpenGroup& group, const CollectiveCall& call, int64_t moved) {
  Group& shared = group.shared;
  const Member& first = group.members[0];
  const auto op = static_cast<CollectiveOp>(first.op);
  const auto dtype = static_cast<DType>(first.dtype);
  shared.arrivals.store(0, std::memory_order_relaxed);
  shared.round = first.count;
  for (const Member& member : group.members) {
    shared.round = same_call(member, first) && shared.round >= 0 ? std::min(shared.round, member.limit) : -1;
  }
  const int workers = std::min(cores_, static_cast<int>(shared.size));
  const WorkPlan plan =
      plan_work(op, static_cast<int>(shared.size), std::max(shared.round, int64_t{0}), dtype, workers);
  shared.chunk_elements = plan.chunk_elements;
  shared.chunks = plan.chunks;
  if (workers == 1 || plan.bytes <= (waiter_.spins() ? kAloneBytesSpinning : kAloneBytesSleeping)) {
    for (uint32_t chunk = 0; chunk < plan.chunks; ++chunk) {
      do_chunk(segment_, shared, group.members, chunk, call.rows, moved, group.from, group.to);
    }
    shared.phase.publish(group.phase + 2);
    return;
  }
  shared.next_chunk.store(0, std::memory_order_relaxed);
  shared.chunks_done.store(0, std::memory_order_relaxed);
  // More helpers than cores would only compete for them.
  shared.phase.publish(group.phase + 1, workers - 1);
}

void CollectiveRunner::work(OpenGroup& group, const CollectiveCall& call, int64_t moved) {
  Group& shared = group.shared;
  Member& me = group.members[static_cast<size_t>(group.index)];
  while (true) {
    me.working.store(1, std::memory_order_relaxed);
    const uint32_t chunk = shared.next_chunk.fetch_add(1, std::memory_order_relaxed);
    // A rank that comes late, perhaps after the round, finds no chunk left and must not read the rest of the plan.
    // Reading `chunks` is safe: no round can open before this rank arrives there.
    if (chunk >= shared.chunks) break;
    do_chunk(segment_, shared, group.members, chunk, call.rows, moved, group.from, group.to);
    if (shared.chunks_done.fetch_add(1, std::memory_order_acq_rel) + 1 == shared.chunks) {
      shared.phase.publish(group.phase + 2);
    }
  }
  me.working.store(0, std::memory_order_relaxed);
}

template <typename Ready, typename IsMissing>
void CollectiveRunner::wait(OpenGroup& group, const CollectiveCall& call, const Ready& ready,
                            const IsMissing& is_missing) {
  const auto missing_rank = [&](int rank) {
    const auto at = std::find(group.ranks.begin(), group.ranks.end(), rank);
    return at != group.ranks.end() && is_missing(group.members[static_cast<size_t>(at - group.ranks.begin())]);
  };
  waiter_.wait(group.shared.phase, ready, [&](double seconds) {
    const int lost = peers_.lost_rank(missing_rank);
    // The lost rank may have arrived just before it ended.
    if ((lost < 0 && !peers_.too_late(seconds)) || ready()) return;
    std::vector<int> missing;
    for (int rank : group.ranks) {
      if (rank != rank_ && missing_rank(rank)) missing.push_back(rank);
    }
    throw peers_.give_up(fmt::format("{} over ranks {}", to_string(call.op), format_ranks(group.ranks)), lost, missing);
  });
}

}  // namespace trainctl::comm
