// The tables of a SharedMemory segment, and how ranks find their common groups and channels in it.
#include "engine/runtime/comm/segment.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>

#include "engine/base/error.h"
#include "engine/base/round_up.h"
#include "engine/base/text.h"

namespace trainctl::comm {
namespace {

constexpr uint64_t kMagic = 0x6c7463'6e69617274;  // "trainctl"
constexpr uint32_t kVersion = 6;
constexpr int64_t kPage = 4096;
constexpr int64_t kHeaderBytes = round_up(int64_t{sizeof(Header)}, kPage);
constexpr int64_t kMaxRanks = 4096;
// All ranks have their buffers at the same offsets. If every arena started on a page boundary, a sum over eight of
// them would map to one cache set and take more than twice as long. A shift of 41 of 64 lines avoids that.
constexpr int64_t kStagger = 41 * 64;

[[noreturn]] void throw_damaged(const std::string& how) {
  throw EnvError("shared memory: the segment is damaged: " + how);
}

}  // namespace

/// The offsets of all parts of the segment, in the order in which they are in it.
Segment::Layout::Layout(const std::vector<int64_t>& arena_bytes, const std::vector<Route>& all_routes) {
  const auto ranks = static_cast<int64_t>(arena_bytes.size());
  const auto num_routes = static_cast<int64_t>(all_routes.size());
  int64_t end = 0;
  const auto take = [&end](int64_t bytes) {
    const int64_t begin = end;
    end = round_up(end + bytes, kPage);
    return begin;
  };
  take(kHeaderBytes);
  sizes = take(ranks * static_cast<int64_t>(sizeof(int64_t)));
  routes = take(num_routes * static_cast<int64_t>(sizeof(Route)));
  statuses = take(ranks * static_cast<int64_t>(sizeof(RankStatus)));
  groups = take(int64_t{kGroups} * static_cast<int64_t>(sizeof(Group)));
  members = take(int64_t{kMembers} * static_cast<int64_t>(sizeof(Member)));
  channels = take(num_routes * static_cast<int64_t>(sizeof(Channel)));
  batches = take(static_cast<int64_t>(sizeof(BatchBoard)));
  collective_staging = take(ranks * kCollectiveStaging);
  send_staging.assign(arena_bytes.size(), -1);
  for (const Route& route : all_routes) {
    int64_t& at = send_staging[static_cast<size_t>(route.from)];
    if (at < 0) at = take(kSendStaging);
  }
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t first = rank * kStagger % kPage;
    arenas.push_back(take(first + arena_bytes[static_cast<size_t>(rank)]) + first);
  }
  total = end;
}

int64_t Segment::bytes_needed(const std::vector<int64_t>& arena_bytes, const std::vector<Route>& routes) {
  if (static_cast<int64_t>(arena_bytes.size()) > kMaxRanks) {
    throw EnvError(fmt::format("shared memory: one host supports at most {} ranks, not {}; reduce launch.ranks",
                               kMaxRanks, arena_bytes.size()));
  }
  return Layout(arena_bytes, routes).total;
}

void Segment::initialize(std::byte* base, const std::vector<int64_t>& arena_bytes, const std::vector<Route>& routes) {
  const Layout layout(arena_bytes, routes);
  std::copy(arena_bytes.begin(), arena_bytes.end(), reinterpret_cast<int64_t*>(base + layout.sizes));
  std::copy(routes.begin(), routes.end(), reinterpret_cast<Route*>(base + layout.routes));
  for (size_t i = 0; i < arena_bytes.size(); ++i) new (base + layout.statuses + i * sizeof(RankStatus)) RankStatus;
  new (base + layout.batches) BatchBoard;
  new (base) Header{kMagic,
                    kVersion,
                    static_cast<uint32_t>(arena_bytes.size()),
                    layout.total,
                    static_cast<int64_t>(routes.size()),
                    {},
                    {},
                    {}};
}

/// Reads the sizes of arenas and the routes from a mapped segment. Throws EnvError if it is damaged or from another
/// version.
Segment::Contents Segment::read_contents(const std::byte* base, int64_t bytes) {
  const auto& header = *reinterpret_cast<const Header*>(base);
  if (bytes < kHeaderBytes + kPage || header.magic != kMagic) {
    throw EnvError(
        "shared memory: the descriptor is not a trainctl segment; use the value of --shm-fd that the "
        "launcher passed");
  }
  if (header.version != kVersion) {
    throw EnvError(
        fmt::format("shared memory: the segment has version {}, but this program uses version {}; install the same "
                    "version of trainctl for the launcher and the ranks",
                    header.version, kVersion));
  }
  const int64_t ranks = header.num_ranks, num_routes = header.num_routes;
  const auto size_bytes = ranks * static_cast<int64_t>(sizeof(int64_t));
  const int64_t routes_at = kHeaderBytes + round_up(size_bytes, kPage);
  if (header.total_bytes != bytes || ranks < 1 || ranks > kMaxRanks || num_routes < 0 || num_routes > ranks * ranks ||
      routes_at + num_routes * static_cast<int64_t>(sizeof(Route)) > bytes) {
    throw_damaged(fmt::format("{} bytes are mapped, but its header specifies {} for {} ranks and {} routes", bytes,
                              header.total_bytes, ranks, num_routes));
  }
  const auto* sizes = reinterpret_cast<const int64_t*>(base + kHeaderBytes);
  for (int64_t i = 0; i < ranks; ++i) {
    if (sizes[i] < 0 || sizes[i] > bytes) {
      throw_damaged(fmt::format("the arena of rank {} has {} bytes, but {} are mapped", i, sizes[i], bytes));
    }
  }
  const auto* routes = reinterpret_cast<const Route*>(base + routes_at);
  for (int64_t i = 0; i < num_routes; ++i) {
    const auto [from, to] = routes[i];
    if (from < 0 || from >= ranks || to < 0 || to >= ranks || (i > 0 && routes[i] <= routes[i - 1])) {
      throw_damaged(fmt::format("route {} is from rank {} to rank {}", i, from, to));
    }
  }
  return {{sizes, sizes + ranks}, {routes, routes + num_routes}};
}

Segment::Segment(std::byte* base, int64_t bytes)
    : base_(base),
      bytes_(bytes),
      contents_(read_contents(base, bytes)),
      layout_(contents_.arena_bytes, contents_.routes),
      num_ranks_(static_cast<int>(contents_.arena_bytes.size())) {
  if (layout_.total != bytes) {
    throw_damaged(fmt::format("{} bytes are mapped, but its arenas and channels need {}", bytes, layout_.total));
  }
}

RankStatus& Segment::status(int rank) const {
  check(rank >= 0 && rank < num_ranks_, "rank is in the segment");
  return reinterpret_cast<RankStatus*>(base_ + layout_.statuses)[rank];
}

std::span<std::byte> Segment::arena(int rank) const {
  check(rank >= 0 && rank < num_ranks_, "rank is in the segment");
  const auto i = static_cast<size_t>(rank);
  return {base_ + layout_.arenas[i], static_cast<size_t>(contents_.arena_bytes[i])};
}

std::span<std::byte> Segment::collective_staging(int rank) const {
  return {base_ + layout_.collective_staging + rank * kCollectiveStaging, static_cast<size_t>(kCollectiveStaging)};
}

std::span<std::byte> Segment::send_staging(int rank) const {
  const int64_t at = layout_.send_staging[static_cast<size_t>(rank)];
  check(at >= 0, "a rank that stages messages has a route");
  return {base_ + at, static_cast<size_t>(kSendStaging)};
}

Channel& Segment::channel(size_t route) const {
  check(route < contents_.routes.size(), "a channel must belong to a route");
  return reinterpret_cast<Channel*>(base_ + layout_.channels)[route];
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
    // The entry is marked as ready but has no ranks, so that a search for a free entry skips it.
    group.state.store(2, std::memory_order_release);
    throw EnvError(
        fmt::format("shared memory: the groups of this job have more than {} members in total; use fewer, larger "
                    "groups, or launch.comm: gloo",
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
    // Filling in an entry takes a microsecond, unless the rank that does it is killed.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (state == 1) {
      sched_yield();
      state = group.state.load(std::memory_order_acquire);
      if (std::chrono::steady_clock::now() > deadline) {
        throw EnvError(fmt::format("shared memory: the rank that was opening the group {{{}}} has exited", key));
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
