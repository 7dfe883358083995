// The launcher's connection to the agent of one host, over whatever breaks: starts the agent by a Transport, installs
// the program where it lacks, connects again, and gives up.
//
//   connecting ──▶ installing ──▶ connecting ──▶ joined ◀──▶ away       joined, away: messages are kept until they
//   arrive
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
    std::function<void(Message& message)> message;  ///< each once, in order
    std::function<void()> confirmed;                ///< the agent has more of what was sent than before
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

  /// All arguments must outlive it, and SIGCHLD be told to look_at_child.
  HostLink(boost::asio::io_context& loop, const Reach& reach, std::string host, Events events);
  HostLink(const HostLink&) = delete;
  HostLink& operator=(const HostLink&) = delete;
  ~HostLink();

  /// Starts a new agent, which is told this first; nothing that was sent to another one is sent to it.
  void begin(Message first);
  /// Nothing happens if the host is lost.
  void send(Message message);
  void flush();
  /// The agent learns what has come.
  void confirm();
  /// Call it often. `pauses`: nothing is read meanwhile, so the agent comes to wait.
  void look(bool pauses);
  void look_at_child();
  /// The last event follows, unless it was lost before.
  void lose(const std::string& why);

  State state() const { return state_; }
  bool is_lost() const { return state_ == State::lost; }
  bool is_joined() const { return state_ == State::joined; }
  bool is_connected() const { return wire_ != nullptr; }
  bool has_joined() const { return has_joined_; }  ///< ever, of this agent
  const std::string& fault() const { return fault_; }
  size_t unconfirmed_bytes() const { return session_.unconfirmed_bytes(); }
  /// Seconds since the last word of the agent.
  double silent_seconds() const;

 private:
  void connect();
  void install();
  void installed(int status);
  void run_child(const std::string& script, const Feed& feed = {});
  void drop_child();
  void received(Frame frame);
  void broken(const std::string& why);
  std::string last_words();

  boost::asio::io_context& loop_;
  const Reach reach_;
  const std::string host_;
  const Events events_;
  State state_ = State::connecting;
  std::string id_;  ///< id of its agent
  uint64_t connection_ = 0;
  bool has_joined_ = false, was_installed_ = false;
  bool is_late_ = false;  ///< the user has been told that the first answer takes long
  std::string fault_;  ///< lost: why
  PipedChild child_;
  std::shared_ptr<boost::asio::posix::stream_descriptor> errors_;
  std::shared_ptr<std::string> said_;  ///< to stderr, by the transport
  std::shared_ptr<Wire> wire_;
  Session session_;
  uint64_t told_ = 0;  ///< the number that the last alive frame has confirmed
  double heard_ = 0, tried_ = 0, alive_told_ = 0;
};

}  // namespace trainctl::hosts
