// One side's messages over connections that may break: each message arrives once and in order. Pure bookkeeping,
// without sockets.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "launcher/hosts/frame.h"

namespace trainctl::hosts {

class Session {
 public:
  /// Queues a message, which is kept until the other side has confirmed it.
  void send(Message message);
  /// Called for a new connection, on which the other side reports that it has everything up to `received`: the rest is
  /// sent again. Returns false if the peer claims messages that were never sent, or lacks messages that it has
  /// confirmed.
  bool joined(uint64_t received);
  /// Called when the connection is lost: nothing is written until joined().
  void lost();
  bool is_joined() const { return joined_; }

  /// Called when the other side confirms everything up to `received`. Returns false as joined() does.
  bool confirmed(uint64_t received);
  /// Returns the message if its number is the next one. Repeated messages are dropped; after a gap in the numbers
  /// `broken` is set.
  std::optional<Message> receive(Numbered numbered, bool& broken);
  /// The highest number that was received.
  uint64_t received() const { return received_; }

  /// Takes bytes for the connection, about `most` bytes at most.
  std::string take_output(size_t most);
  bool has_output() const { return joined_ && unwritten_ < kept_.size(); }
  /// Returns whether everything was confirmed.
  bool is_done() const { return kept_.empty(); }
  size_t unconfirmed_bytes() const { return bytes_; }

 private:
  struct Kept {
    uint64_t number;
    std::string frame;
  };
  std::deque<Kept> kept_;
  size_t unwritten_ = 0;  ///< index in kept_ of the first that was not written on this connection
  size_t bytes_ = 0;
  uint64_t sent_ = 0, received_ = 0, confirmed_ = 0;
  bool joined_ = false;
};

}  // namespace trainctl::hosts
