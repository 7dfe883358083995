// One rank's sends and receives over the channels of one segment. A send posts the offset of its data; the
// receiver copies from there and acknowledges. Data outside the segment is staged in pieces.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "engine/runtime/comm/peers.h"
#include "engine/runtime/comm/segment.h"

namespace trainctl::comm {

class MessageRunner {
 public:
  MessageRunner(const SharedMemory& memory, int rank, const Peers& peers, Waiter& waiter);

  int64_t send(int peer, const std::byte* data, int64_t bytes);
  void wait_send(int peer, int64_t sequence);
  void recv(int peer, std::byte* data, int64_t bytes);
  /// Adds a message of f32 numbers to `sum`, read directly from the memory of its sender.
  void recv_sum(int peer, float* sum, int64_t count);
  /// True if part of a message from `peer` has arrived.
  bool has_message(int peer);
  /// Discards everything that has arrived.
  void drop(int peer);

 private:
  /// A staged piece that the receiver may not have copied yet; pieces are freed in the order of sending.
  struct Staged {
    int peer;
    uint32_t piece;  ///< free once the channel's `taken` has reached this
    int64_t begin;   ///< bytes staged before it
  };

  struct Outgoing {
    int peer;
    Channel* channel;
    int64_t sent;  ///< messages
  };
  struct Incoming {
    int peer;
    Channel* channel;
  };

  /// The state of the channel to a peer. Checks that the segment was created with that route.
  Outgoing& to(int peer);
  Channel& from(int peer);
  void post(int peer, Piece piece);
  /// Copies data to the staging area. Returns the offset of the copy from the start of the segment.
  int64_t stage(int peer, const std::byte* data, int64_t bytes);
  /// Calls use(data, bytes before it, bytes) for each piece of a message as it comes.
  template <typename Use>
  void take(int peer, int64_t bytes, const Use& use);
  template <typename Ready, typename Describe>
  void wait(Event& event, int peer, const Ready& ready, const Describe& describe);

  const SharedMemory& memory_;
  Segment& segment_;
  int rank_;
  const Peers& peers_;
  Waiter& waiter_;
  std::vector<Outgoing> outgoing_;  ///< by peer
  std::vector<Incoming> incoming_;  ///< by peer
  std::deque<Staged> staged_;
  int64_t staging_end_ = 0;  ///< bytes staged so far; the area is a ring
};

}  // namespace trainctl::comm
