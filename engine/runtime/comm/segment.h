// The tables of a SharedMemory segment, and how ranks find their common groups and channels in it.
//
//   [ header | arena sizes | routes | statuses | groups | members | channels | batches |
//     staging of each rank | arena of each rank ]
//
// The layout follows from the arena sizes and the routes. Each route has one channel, so the segment grows with the
// ranks and the pairs that exchange messages, not with all pairs. A new segment is all zero, which is the empty state
// of every table; untouched pages take no memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/runtime/comm/event.h"
#include "engine/runtime/comm/shared_memory.h"

namespace trainctl::comm {

struct Header {
  uint64_t magic;
  uint32_t version;
  uint32_t num_ranks;
  int64_t total_bytes;
  int64_t num_routes;
  alignas(64) std::atomic<uint32_t> members_used;
  alignas(64) StepGate gate;
  alignas(64) SaveBoard saves;
};

/// One member's entry in a group: its arguments of the group's next call. The member writes it before it arrives;
/// all members read it while the call is open.
struct alignas(64) Member {
  int32_t rank;
  std::atomic<uint32_t> arrived;  ///< the phase that ends the last call it joined
  std::atomic<uint32_t> working;  ///< 1: the member is working on a chunk
  uint8_t op, dtype;
  uint16_t root;
  int64_t in, out;  ///< bytes from the segment's start
  int64_t stride;   ///< elements between blocks, in `in` and in `out`
  int64_t count;    ///< elements (of a block) not yet done
  int64_t limit;    ///< most elements that one round can take, if buffers are staged
};
static_assert(sizeof(Member) == 64);

/// Ranks that call collectives together. `phase` advances by two per round. It is an odd number while a
/// round is open for work, otherwise an even one.
struct alignas(64) Group {
  std::atomic<uint32_t> state;  ///< 0 empty, 1 being filled in, 2 ready
  uint32_t size;
  uint32_t first_member;
  alignas(64) Event phase;
  alignas(64) std::atomic<uint32_t> arrivals;
  alignas(64) std::atomic<uint32_t> next_chunk;
  alignas(64) std::atomic<uint32_t> chunks_done;
  // The open round; written by the last member to arrive.
  int64_t round;  ///< elements (of a block); -1: the members made different calls
  int64_t chunk_elements;
  uint32_t chunks;
};

/// A piece of a message, in the sender's staging area until the receiver has copied it.
struct Piece {
  int64_t offset;
  int64_t bytes;
  int64_t last;  ///< 1: the piece is the last one of its message
};

/// Messages from one rank to another, in order: a ring of pieces.
struct alignas(64) Channel {
  static constexpr uint32_t kPieces = 1024;
  Event posted;             ///< pieces that the sender has posted
  alignas(64) Event taken;  ///< pieces that the receiver has copied
  std::atomic<uint32_t> messages_taken;
  alignas(64) Piece pieces[kPieces];
};

/// The tables of one mapped segment.
class Segment {
 public:
  static constexpr uint32_t kGroups = 4096;
  static constexpr uint32_t kMembers = 65536;
  static constexpr int64_t kCollectiveStaging = int64_t{8} << 20;
  static constexpr int64_t kSendStaging = int64_t{64} << 20;

  /// `routes` are sorted and unique.
  static int64_t bytes_needed(const std::vector<int64_t>& arena_bytes, const std::vector<Route>& routes);
  /// Fills in a new segment.
  static void initialize(std::byte* base, const std::vector<int64_t>& arena_bytes, const std::vector<Route>& routes);
  /// `bytes` is the size of the mapping. Throws EnvError if it is not a segment of this version.
  Segment(std::byte* base, int64_t bytes);

  int num_ranks() const { return num_ranks_; }
  RankStatus& status(int rank) const;
  StepGate& gate() const { return reinterpret_cast<Header*>(base_)->gate; }
  SaveBoard& saves() const { return reinterpret_cast<Header*>(base_)->saves; }
  BatchBoard& batches() const { return *reinterpret_cast<BatchBoard*>(base_ + layout_.batches); }
  std::span<std::byte> arena(int rank) const;
  std::span<std::byte> collective_staging(int rank) const;
  std::span<std::byte> send_staging(int rank) const;  ///< only for a rank that sends messages

  /// Finds the group of these ranks, or creates it. Throws EnvError when the tables are full.
  Group& open_group(const std::vector<int>& ranks) const;
  std::span<Member> members(const Group& group) const;
  /// Sorted. Messages of routes()[i] use channel(i).
  const std::vector<Route>& routes() const { return contents_.routes; }
  Channel& channel(size_t route) const;

  std::byte* at(int64_t offset) const { return base_ + offset; }
  /// The offset of memory in the segment; -1 if it is not in the segment.
  int64_t offset_of(const void* data, int64_t bytes) const;

 private:
  struct Contents {
    std::vector<int64_t> arena_bytes;
    std::vector<Route> routes;
  };
  struct Layout {
    Layout(const std::vector<int64_t>& arena_bytes, const std::vector<Route>& routes);
    int64_t sizes, routes, statuses, groups, members, channels, batches, collective_staging;
    std::vector<int64_t> send_staging;  ///< by rank; -1: it sends no messages
    std::vector<int64_t> arenas;
    int64_t total;
  };
  static Contents read_contents(const std::byte* base, int64_t bytes);
  bool holds(const Group& group, const std::vector<int>& ranks) const;
  void fill_in(Group& group, const std::vector<int>& ranks) const;

  std::byte* base_;
  int64_t bytes_;
  Contents contents_;
  Layout layout_;
  int num_ranks_;
};

}  // namespace trainctl::comm
