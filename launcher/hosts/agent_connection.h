// The launcher's connection to an agent, as the agent sees it. The first connection sets the token; a later one with
// the same token takes the place of a broken one, and no message is lost or handled twice (session.h).
#pragma once
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/hosts/frame.h"
#include "launcher/hosts/session.h"
#include "launcher/hosts/wire.h"

namespace trainctl::hosts {

class AgentConnection {
 public:
  struct Events {
    std::function<void(const Message&)> message;  ///< a message of the launcher, each once and in order
    std::function<void()> confirmed;              ///< the launcher has received more of what was sent
  };

  /// `listener`: a listening socket of the local domain, which it owns.
  AgentConnection(boost::asio::io_context& loop, int listener, Events events);

  /// Accepts connections from now on.
  void accept();
  /// Sends a message, or keeps it until there is a connection.
  void send(Message message);
  /// Writes as much as the connection takes without waiting.
  void flush();
  /// Tells the launcher which of its messages have arrived. Only if is_open().
  void confirm();

  bool is_open() const { return wire_ != nullptr; }
  /// True if so much output is unconfirmed that ranks should wait.
  bool is_full() const;
  /// True if the launcher has confirmed everything.
  bool is_done() const { return session_.is_done(); }
  /// Seconds since the launcher was last heard, or since the construction.
  double silent_seconds() const;

 private:
  using Clock = std::chrono::steady_clock;

  void closed(const std::shared_ptr<Wire>& wire);
  void received(const std::shared_ptr<Wire>& wire, Frame frame);
  void joined(const std::shared_ptr<Wire>& wire, const Join& join);
  void refuse(std::shared_ptr<Wire> wire);

  boost::asio::io_context& loop_;
  boost::asio::local::stream_protocol::acceptor acceptor_;
  const Events events_;
  std::vector<std::shared_ptr<Wire>> newcomers_;  ///< connections that have not joined yet
  std::shared_ptr<Wire> wire_;                    ///< the current connection; null: there is none
  Session session_;
  std::string token_;
  uint64_t connection_ = 0;  ///< number of the current connection, or of the last one
  uint64_t confirmed_ = 0;   ///< number confirmed by the last alive frame
  Clock::time_point heard_ = Clock::now();
};

}  // namespace trainctl::hosts
