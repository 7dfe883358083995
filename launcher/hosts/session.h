// One side's messages over connections that may break: each message arrives once and in order, whatever connections do.
// Pure bookkeeping, without sockets.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "launcher/hosts/frame.h"

namespace trainctl::hosts {

class Session {
 public:
  /// Kept until the other side has confirmed it.
  void send(Message message);
  /// There is a new connection, on which the other side says that it has everything up to `received`: what it lacks is
  /// written again. False if it claims what was never sent, or lacks what it has confirmed.
  bool joined(uint64_t received);
  /// The connection is gone: nothing is written until joined().
  void lost();
  bool is_joined() const { return joined_; }

  /// The other side has everything up to `received`. False as in joined().
  bool confirmed(uint64_t received);
  /// The message, if it is the next one. One that has come before is left out; after a gap the connection is `broken`.
  std::optional<Message> receive(Numbered numbered, bool& broken);
  /// The highest number that has come.
  uint64_t received() const { return received_; }

  /// Bytes for the connection, once. At most about `most`.
  std::string take_output(size_t most);
  bool has_output() const { return joined_ && unwritten_ < kept_.size(); }
  /// Everything was confirmed.
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
