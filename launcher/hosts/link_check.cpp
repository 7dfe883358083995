// Checks whether the hosts of a run can connect to each other.
#include "launcher/hosts/link_check.h"

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <utility>

#include "engine/base/error.h"

namespace trainctl::hosts {
namespace {

using boost::asio::ip::tcp;

constexpr auto kPause = std::chrono::milliseconds(100);

/// The connections of one check, which exists as long as one of its handlers is pending.
class LinkCheck : public std::enable_shared_from_this<LinkCheck> {
 public:
  LinkCheck(boost::asio::io_context& loop, const std::vector<LinkPeer>& peers,
            std::function<void(const std::map<std::string, std::string>&)> done)
      : timer_(loop), done_(std::move(done)) {
    for (const LinkPeer& peer : peers) tries_.push_back({peer, tcp::socket(loop)});
  }

  void start() {
    left_ = tries_.size();
    timer_.expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(
        std::chrono::duration<double>(kLinkSeconds)));
    timer_.async_wait([self = shared_from_this()](const boost::system::error_code&) { self->finish(); });
    for (Try& one : tries_) {
      boost::system::error_code error;
      const auto address = boost::asio::ip::make_address(one.peer.address, error);
      if (error) {
        ended(one, error);
        continue;
      }
      one.socket.async_connect({address, static_cast<uint16_t>(one.peer.port)},
                               [self = shared_from_this(), &one](const boost::system::error_code& failed) {
                                 self->ended(one, failed);
                               });
    }
    if (tries_.empty()) timer_.cancel();
  }

 private:
  struct Try {
    LinkPeer peer;
    tcp::socket socket;
    bool is_over = false;
  };

  void ended(Try& one, const boost::system::error_code& error) {
    if (std::exchange(one.is_over, true)) return;
    if (error) faults_[one.peer.name] = "cannot connect to " + one.peer.address + ": " + error.message();
    if (--left_ == 0) timer_.cancel();
  }

  void finish() {
    for (Try& one : tries_) {
      ended(one, boost::asio::error::timed_out);
      boost::system::error_code ignored;
      one.socket.close(ignored);
    }
    done_(faults_);
  }

  std::vector<Try> tries_;
  boost::asio::steady_timer timer_;
  size_t left_ = 0;
  std::map<std::string, std::string> faults_;
  std::function<void(const std::map<std::string, std::string>&)> done_;
};

}  // namespace

LinkListener::LinkListener(boost::asio::io_context& loop, const std::string& address) : acceptor_(loop), pause_(loop) {
  boost::system::error_code error;
  const auto at = boost::asio::ip::make_address(address, error);
  if (!error) acceptor_.open(tcp::v4(), error);
  if (!error) acceptor_.bind({at, 0}, error);
  if (!error) acceptor_.listen(tcp::acceptor::max_listen_connections, error);
  const auto here = error ? tcp::endpoint() : acceptor_.local_endpoint(error);
  if (error) return;
  port_ = here.port();
  accept();
}

void LinkListener::accept() {
  acceptor_.async_accept([this](const boost::system::error_code& error, tcp::socket) {
    if (!error) return accept();
    if (error == boost::asio::error::operation_aborted) return;
    pause_.expires_after(kPause);
    pause_.async_wait([this](const boost::system::error_code& stopped) {
      if (!stopped) accept();
    });
  });
}

void check_links(boost::asio::io_context& loop, const std::vector<LinkPeer>& peers,
                 std::function<void(const std::map<std::string, std::string>&)> done) {
  std::make_shared<LinkCheck>(loop, peers, std::move(done))->start();
}

int report_reach(const std::string& address_and_port) {
  const size_t colon = address_and_port.rfind(':');
  if (colon == std::string::npos) throw EnvError("'" + address_and_port + "' is not an address and port");
  boost::asio::io_context loop;
  bool reached = false;
  const LinkPeer peer{"peer", address_and_port.substr(0, colon), std::atoi(address_and_port.c_str() + colon + 1)};
  check_links(loop, {peer}, [&](const auto& faults) { reached = faults.empty(); });
  loop.run();
  if (reached) std::cout << kReachedLine << std::endl;
  return reached ? kExitDone : kExitEnv;
}

}  // namespace trainctl::hosts
