// The launcher's link to the agent of one host, which survives broken connections: it starts the agent with a
// Transport, installs the program where it is missing, reconnects, and gives up after a limit. Messages are kept until
// they arrive.
//
//   connecting ──▶ installing ──▶ connecting ──▶ joined ◀──▶ away
//        │              │                           │          │ longer than launch.reconnect, or the agent is gone
//        └──────────────┴───────────────────────────┴──────────┴──▶ lost
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "launcher/hosts/bundle.h"
#include "launcher/hosts/frame.h"
#include "launcher/hosts/session.h"
#include "launcher/hosts/transport.h"
#include "launcher/hosts/wire.h"

namespace trainctl::hosts {

class HostLink {
 public:
  enum class State { connecting, installing, joined, away, lost };
  struct Events {
    std::function<void(Message& message)> message;  ///< called once per message, in order
    std::function<void()> confirmed;                ///< the agent has confirmed more of the sent messages
    std::function<void(const std::string& why)> lost;
    std::function<void(const std::string& what)> notice;
  };
  /// Settings that all links of a run share.
  struct Reach {
    const Transport& transport;
    const Bundle& bundle;
    const std::string& token;
    double reconnect_seconds;
  };

  /// All arguments must outlive it. Call look_at_child on SIGCHLD.
  HostLink(boost::asio::io_context& loop, const Reach& reach, std::string host, Events events);
  HostLink(const HostLink&) = delete;
  HostLink& operator=(const HostLink&) = delete;
  ~HostLink();

  /// Starts a new agent with this first message; messages to an earlier agent are not sent to it.
  void begin(Message first);
  /// Sends a message; does nothing if the host is lost.
  void send(Message message);
  void flush();
  /// Confirms the received messages to the agent.
  void confirm();
  /// Checks timeouts and reconnects; call it often. `pauses`: stops reading, which eventually makes the agent wait.
  void look(bool pauses);
  void look_at_child();
  /// Gives up the host. The last event follows, unless it was already lost.
  void lose(const std::string& why);

  State state() const { return state_; }
  bool is_lost() const { return state_ == State::lost; }
  bool is_joined() const { return state_ == State::joined; }
  bool is_connected() const { return wire_ != nullptr; }
  bool has_joined() const { return has_joined_; }  ///< whether this agent has ever joined
  const std::string& fault() const { return fault_; }
  size_t unconfirmed_bytes() const { return session_.unconfirmed_bytes(); }
  /// Seconds since the last data from the agent.
  double silent_seconds() const;

 private:
  void connect();
  void install();
  void installed(int status);
  void run_child(const std::string& script, const Feed& feed = {});
  void drop_child();
  void received(Frame frame);
  void broken(const std::string& why);
  std::string error_output();

  boost::asio::io_context& loop_;
  const Reach reach_;
  const std::string host_;
  const Events events_;
  State state_ = State::connecting;
  std::string id_;  ///< id of its agent
  uint64_t connection_ = 0;
  bool has_joined_ = false, was_installed_ = false;
  bool is_late_ = false;  ///< the user has been notified that the first response is late
  std::string fault_;     ///< lost: why
  PipedChild child_;
  std::shared_ptr<boost::asio::posix::stream_descriptor> errors_;
  std::shared_ptr<std::string> error_text_;  ///< output of the transport to stderr
  std::shared_ptr<Wire> wire_;
  Session session_;
  uint64_t confirmed_ = 0;  ///< number confirmed by the last alive frame
  double heard_ = 0, tried_ = 0, alive_reported_ = 0;
};

}  // namespace trainctl::hosts
