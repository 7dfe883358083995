// See address.h.
#include "launcher/hosts/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <sstream>

#include "engine/base/error.h"

namespace trainctl::hosts {
namespace {

/// The IPv4 address of an interface; empty: it has none.
std::string address_of_interface(const std::string& name) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  std::string address;
  for (const ifaddrs* it = all; it != nullptr && address.empty(); it = it->ifa_next) {
    if (it->ifa_addr == nullptr || it->ifa_addr->sa_family != AF_INET || name != it->ifa_name) continue;
    char text[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(it->ifa_addr)->sin_addr, text, sizeof text);
    address = text;
  }
  freeifaddrs(all);
  return address;
}

}  // namespace

std::string own_address(const std::string& interface) {
  if (!interface.empty()) {
    const std::string address = address_of_interface(interface);
    if (address.empty())
      throw EnvError("there is no interface " + interface + " with an IPv4 address (launch.interface)");
    return address;
  }
  const char* connection = std::getenv("SSH_CONNECTION");  // client's address and port, ours
  std::istringstream words(connection == nullptr ? "" : connection);
  std::string theirs, their_port, ours;
  words >> theirs >> their_port >> ours;
  return ours.empty() ? "127.0.0.1" : ours;
}

}  // namespace trainctl::hosts
