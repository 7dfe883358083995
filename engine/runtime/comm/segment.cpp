// See segment.h.
#include "engine/runtime/comm/segment.h"

#include <fmt/format.h>
#include <sched.h>

#include <chrono>
#include <cstring>
#include <new>

#include "engine/base/error.h"
#include "engine/base/round_up.h"
#include "engine/base/text.h"

namespace trainctl::comm {
namespace {

constexpr uint64_t kMagic = 0x6c7463'6e69617274;  // "trainctl"
constexpr uint32_t kVersion = 2;
constexpr int64_t kPage = 4096;
constexpr int64_t kMaxRanks = 4096;
// Ranks of one program have their buffers at the same offsets. If all arenas began on a page, a sum over eight of
// them would use eight lines of one cache set, and take more than twice as long. 41 lines of 64: all different.
constexpr int64_t kStagger = 41 * 64;

constexpr int64_t kStaging = Segment::kCollectiveStaging + Segment::kSendStaging;

}  // namespace

Segment::Layout::Layout(const std::vector<int64_t>& arena_bytes) {
  const auto ranks = static_cast<int64_t>(arena_bytes.size());
  int64_t end = 0;
  const auto take = [&end](int64_t bytes) {
    const int64_t begin = end;
    end = round_up(end + bytes, kPage);
    return begin;
  };
  take(sizeof(Header));
  sizes = take(ranks * static_cast<int64_t>(sizeof(int64_t)));
  statuses = take(ranks * static_cast<int64_t>(sizeof(RankStatus)));
  groups = take(int64_t{kGroups} * static_cast<int64_t>(sizeof(Group)));
  members = take(int64_t{kMembers} * static_cast<int64_t>(sizeof(Member)));
  channels = take(ranks * ranks * static_cast<int64_t>(sizeof(Channel)));
  staging = take(ranks * kStaging);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t first = rank * kStagger % kPage;
    arenas.push_back(take(first + arena_bytes[static_cast<size_t>(rank)]) + first);
  }
  total = end;
}

int64_t Segment::bytes_needed(const std::vector<int64_t>& arena_bytes) { return Layout(arena_bytes).total; }

void Segment::initialize(std::byte* base, const std::vector<int64_t>& arena_bytes) {
  const Layout layout(arena_bytes);
  auto* sizes = new (base + layout.sizes) int64_t[arena_bytes.size()];
  for (size_t i = 0; i < arena_bytes.size(); ++i) sizes[i] = arena_bytes[i];
  for (size_t i = 0; i < arena_bytes.size(); ++i) new (base + layout.statuses + i * sizeof(RankStatus)) RankStatus;
  new (base) Header{kMagic, kVersion, static_cast<uint32_t>(arena_bytes.size()), layout.total, {}, {}};
}

std::vector<int64_t> Segment::read_arena_bytes(const std::byte* base, int64_t bytes) {
  const auto& header = *reinterpret_cast<const Header*>(base);
  if (bytes < 2 * kPage || header.magic != kMagic) {
    throw EnvError("shared memory: the descriptor is not a trainctl segment; pass --shm-fd as the launcher gave it");
  }
  if (header.version != kVersion) {
    throw EnvError(
        fmt::format("shared memory: the segment has version {}, this program has {}; use the same trainctl "
                    "for the launcher and the ranks",
                    header.version, kVersion));
  }
  const int64_t ranks = header.num_ranks;
  if (header.total_bytes != bytes || ranks < 1 || ranks > kMaxRanks ||
      kPage + ranks * static_cast<int64_t>(sizeof(int64_t)) > bytes) {
    throw EnvError(
        fmt::format("shared memory: the segment is damaged: {} bytes mapped, its header says {} for {} ranks", bytes,
                    header.total_bytes, ranks));
  }
  const auto* sizes = reinterpret_cast<const int64_t*>(base + kPage);
  for (int64_t i = 0; i < ranks; ++i) {
    if (sizes[i] < 0 || sizes[i] > bytes) {
      throw EnvError(
          fmt::format("shared memory: the segment is damaged: the arena of rank {} has {} bytes of the {} "
                      "mapped",
                      i, sizes[i], bytes));
    }
  }
  return {sizes, sizes + ranks};
}

Segment::Segment(std::byte* base, int64_t bytes)
    : base_(base),
      bytes_(bytes),
      arena_bytes_(read_arena_bytes(base, bytes)),
      layout_(arena_bytes_),
      num_ranks_(static_cast<int>(arena_bytes_.size())) {
  if (layout_.total != bytes) {
    throw EnvError(fmt::format("shared memory: the segment is damaged: {} bytes mapped, its arenas need {}", bytes,
                               layout_.total));
  }
}

RankStatus& Segment::status(int rank) const {
  check(rank >= 0 && rank < num_ranks_, "rank is in the segment");
  return reinterpret_cast<RankStatus*>(base_ + layout_.statuses)[rank];
}

std::span<std::byte> Segment::arena(int rank) const {
  check(rank >= 0 && rank < num_ranks_, "rank is in the segment");
  const auto i = static_cast<size_t>(rank);
  return {base_ + layout_.arenas[i], static_cast<size_t>(arena_bytes_[i])};
}

std::span<std::byte> Segment::collective_staging(int rank) const {
  return {base_ + layout_.staging + rank * kStaging, static_cast<size_t>(kCollectiveStaging)};
}

std::span<std::byte> Segment::send_staging(int rank) const {
  return {base_ + layout_.staging + rank * kStaging + kCollectiveStaging, static_cast<size_t>(kSendStaging)};
}

Channel& Segment::channel(int from, int to) const {
  const int64_t index = int64_t{from} * num_ranks_ + to;
  return reinterpret_cast<Channel*>(base_ + layout_.channels)[index];
}

std::span<Member> Segment::members(const Group& group) const {
  return {reinterpret_cast<Member*>(base_ + layout_.members) + group.first_member, group.size};
}

int64_t Segment::offset_of(const void* data, int64_t bytes) const {
  const int64_t offset = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data)) -
                         static_cast<int64_t>(reinterpret_cast<uintptr_t>(base_));
  return offset >= 0 && bytes <= bytes_ && offset <= bytes_ - bytes ? offset : -1;
}

bool Segment::holds(const Group& group, const std::vector<int>& ranks) const {
  if (group.size != ranks.size()) return false;
  const std::span<const Member> list = members(group);
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (list[i].rank != ranks[i]) return false;
  }
  return true;
}

void Segment::fill_in(Group& group, const std::vector<int>& ranks) const {
  auto& used = reinterpret_cast<Header*>(base_)->members_used;
  group.size = static_cast<uint32_t>(ranks.size());
  group.first_member = used.fetch_add(group.size, std::memory_order_relaxed);
  if (uint64_t{group.first_member} + group.size > kMembers) {
    used.fetch_sub(group.size, std::memory_order_relaxed);
    group.size = group.first_member = 0;
    // Ready, but nobody's: those who look for room go past it.
    group.state.store(2, std::memory_order_release);
    throw EnvError(
        fmt::format("shared memory: the groups of this job have more than {} members together; use "
                    "larger groups, or launch.comm: gloo",
                    kMembers));
  }
  const std::span<Member> list = members(group);
  for (size_t i = 0; i < ranks.size(); ++i) list[i].rank = ranks[i];
  group.state.store(2, std::memory_order_release);
}

Group& Segment::open_group(const std::vector<int>& ranks) const {
  std::string key;
  for (int rank : ranks) key += fmt::format("{},", rank);
  const uint64_t hash = stable_hash(key);
  auto* table = reinterpret_cast<Group*>(base_ + layout_.groups);
  for (uint32_t probe = 0; probe < kGroups; ++probe) {
    Group& group = table[(hash + probe) % kGroups];
    uint32_t state = 0;
    if (group.state.compare_exchange_strong(state, 1, std::memory_order_acquire)) {
      fill_in(group, ranks);
      return group;
    }
    // Being filled in takes a microsecond, unless its maker was killed in it.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (state == 1) {
      sched_yield();
      state = group.state.load(std::memory_order_acquire);
      if (std::chrono::steady_clock::now() > deadline) {
        throw EnvError(fmt::format("shared memory: the rank that was opening the group {{{}}} is gone", key));
      }
    }
    if (holds(group, ranks)) return group;
  }
  throw EnvError(
      fmt::format("shared memory: the ranks of this host have more than {} groups; use fewer, or "
                  "launch.comm: gloo",
                  kGroups));
}

}  // namespace trainctl::comm
