// Tests the check that hosts reach each other, on loopback addresses of this one.
#include "launcher/hosts/link_check.h"

#include <doctest/doctest.h>

using namespace trainctl::hosts;

TEST_CASE("hosts: a check of links names each peer that is not reached, with the reason, and no other") {
  boost::asio::io_context loop;
  LinkListener listener(loop, "127.0.0.1");
  REQUIRE(listener.port() > 0);
  int unused = 0;
  {
    boost::asio::ip::tcp::acceptor taken(loop, {boost::asio::ip::address_v4::loopback(), 0});
    unused = taken.local_endpoint().port();
  }
  std::map<std::string, std::string> found{{"nothing", "was called"}};
  check_links(loop,
              {{"here", "127.0.0.1", listener.port()}, {"closed", "127.0.0.1", unused}, {"odd", "not an address", 1}},
              [&](const std::map<std::string, std::string>& faults) {
                found = faults;
                loop.stop();
              });
  loop.run();
  CHECK(found.size() == 2);
  CHECK(found["closed"] == "cannot connect to 127.0.0.1: Connection refused");
  CHECK(found["odd"].starts_with("cannot connect to not an address: "));
}

TEST_CASE("hosts: a check of no links ends at once, without a fault") {
  boost::asio::io_context loop;
  bool is_done = false;
  check_links(loop, {}, [&](const std::map<std::string, std::string>& faults) { is_done = faults.empty(); });
  loop.run();
  CHECK(is_done);
}

TEST_CASE("hosts: a listener that cannot have its address has no port") {
  boost::asio::io_context loop;
  CHECK(LinkListener(loop, "192.0.2.1").port() == 0);
  CHECK(LinkListener(loop, "").port() == 0);
}
