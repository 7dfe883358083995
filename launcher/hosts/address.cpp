// The address on which a host listens for the others.
#include "launcher/hosts/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

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

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Address of this host on the route to another IPv4 address; empty if there is no route. Sends nothing.
std::string address_towards(const std::string& other) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(9);
  socklen_t size = sizeof address;
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  char text[INET_ADDRSTRLEN] = "";
  if (fd >= 0 && inet_pton(AF_INET, other.c_str(), &address.sin_addr) == 1 &&
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0)
    inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
  if (fd >= 0) close(fd);
  return text;
}

}  // namespace

std::string own_address(const std::string& interface) {
  if (!interface.empty()) {
    const std::string address = address_of_interface(interface);
    if (address.empty())
      throw EnvError("launch.interface: no interface " + interface + " with an IPv4 address on this host");
    return address;
  }
  if (const std::string reached = variable("TRAINCTL_ADDRESS"); !reached.empty()) return reached;
  // A step of Slurm may have SSH_CONNECTION of the session on the login node from which it was submitted.
  if (const std::string way = address_towards(variable("SLURM_LAUNCH_NODE_IPADDR")); !way.empty()) return way;
  std::istringstream words(variable("SSH_CONNECTION"));  // client's address and port, ours
  std::string theirs, their_port, ours;
  words >> theirs >> their_port >> ours;
  return ours.empty() ? "127.0.0.1" : ours;
}

}  // namespace trainctl::hosts
