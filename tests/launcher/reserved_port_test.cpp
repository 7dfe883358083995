// Tests that no other process gets a reserved port by chance.
#include "launcher/reserved_port.h"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <set>
#include <vector>

using namespace trainctl;

namespace {

sockaddr_in address_of(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(port);
  return address;
}

}  // namespace

TEST_CASE("ports held at the same time are different") {
  std::vector<std::unique_ptr<ReservedPort>> reserved;
  std::set<uint16_t> ports;
  for (int i = 0; i < 200; ++i) {
    reserved.push_back(std::make_unique<ReservedPort>());
    ports.insert(reserved.back()->port());
  }
  CHECK(ports.size() == 200);
}

TEST_CASE("a program that knows the number of a held port can listen on it") {
  const ReservedPort reserved;
  const sockaddr_in address = address_of(reserved.port());
  const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  REQUIRE(setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0);
  CHECK(bind(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  CHECK(listen(server, 1) == 0);
  close(server);
}
