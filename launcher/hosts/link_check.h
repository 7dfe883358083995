// Checks whether the hosts of a run can connect to each other. The agent of each host listens, and connects to the
// listeners of other hosts on request of the launcher, after a rank has lost another one: this distinguishes a broken
// link from a broken rank. No data is sent on these connections: a listener only accepts them.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace trainctl::hosts {

class LinkListener {
 public:
  /// Listens at an IPv4 address of this host.
  LinkListener(boost::asio::io_context& loop, const std::string& address);
  /// The port; 0: it cannot listen, and this host's links are not checked.
  int port() const { return port_; }

 private:
  void accept();
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer pause_;  ///< The pause after an error: without free descriptors the next call would fail at
                                     ///< once.
  int port_ = 0;
};

struct LinkPeer {
  std::string name, address;
  int port = 0;
};

/// Connects to all peers at once. Calls `done` after kLinkSeconds at the latest, with the faults by name:
/// {"b": "cannot connect to 10.0.0.3: Connection timed out"}; peers without a fault are omitted.
void check_links(boost::asio::io_context& loop, const std::vector<LinkPeer>& peers,
                 std::function<void(const std::map<std::string, std::string>& faults)> done);
inline constexpr double kLinkSeconds = 3;

/// Prints kReachedLine if the listener at "10.0.0.2:4711" is reached. Blocks. Returns the exit code.
int report_reach(const std::string& address_and_port);
inline constexpr const char* kReachedLine = "trainctl-reached";

}  // namespace trainctl::hosts
