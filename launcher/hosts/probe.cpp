// The part of probe.h that runs on a host.
#include "launcher/hosts/probe.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/open_files.h"
#include "engine/base/processors.h"
#include "launcher/hosts/address.h"
#include "launcher/rank_error.h"

namespace trainctl::hosts {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int kPings = 21;
constexpr size_t kPingBytes = 64, kBlockBytes = 1 << 20;
constexpr double kProbeConnectSeconds = 3, kSendSeconds = 0.3, kIdleSeconds = 10;
/// Largest number of simultaneous connections from other hosts.
constexpr size_t kMostVisitors = 256;

int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  for (int64_t kib = 0; file >> name >> kib; std::getline(file, unit))
    if (name == "MemAvailable:") return kib << 10;
  return 0;
}

int64_t free_disk() {
  const char* home = std::getenv("HOME");
  struct statvfs info {};
  return statvfs(home == nullptr ? "/" : home, &info) == 0 ? static_cast<int64_t>(info.f_bavail * info.f_frsize) : 0;
}

int gpus() {
  std::error_code error;
  int count = 0;
  for (fs::directory_iterator it("/proc/driver/nvidia/gpus", error), end; !error && it != end; it.increment(error))
    ++count;
  return count;
}

bool exchange(int fd, char* bytes, size_t size, bool sends) {
  for (size_t done = 0; done < size;) {
    const ssize_t moved =
        sends ? send(fd, bytes + done, size - done, MSG_NOSIGNAL) : recv(fd, bytes + done, size - done, 0);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return false;
    done += static_cast<size_t>(moved);
  }
  return true;
}

/// Echoes each 64 bytes; after a first byte 'B', replies to each MiB with 64 bytes.
void serve(int fd) {
  const timeval patience{static_cast<time_t>(kIdleSeconds), 0};
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO}) setsockopt(fd, SOL_SOCKET, option, &patience, sizeof patience);
  std::vector<char> block(kBlockBytes);
  while (exchange(fd, block.data(), kPingBytes, false)) {
    if (block[0] == 'B' && !exchange(fd, block.data(), kBlockBytes, false)) break;
    if (!exchange(fd, block.data(), kPingBytes, true)) break;
  }
}

/// Connections of other hosts, each handled by a thread. Anyone can connect, so if there are too many, a new one closes
/// the oldest.
class Visitors {
 public:
  explicit Visitors(size_t most) : most_(most) {}

  void welcome(int fd) {
    const std::lock_guard lock(mutex_);
    if (fds_.size() >= most_) {
      shutdown(fds_.front(), SHUT_RDWR);  // its thread closes it
      fds_.pop_front();
    }
    fds_.push_back(fd);
    try {
      std::thread([this, fd] {
        serve(fd);
        const std::lock_guard over(mutex_);
        std::erase(fds_, fd);
        close(fd);
      }).detach();
    } catch (const std::system_error&) {  // a limit of threads
      fds_.pop_back();
      close(fd);
    }
  }

 private:
  const size_t most_;
  std::mutex mutex_;
  std::deque<int> fds_;
};

int listen_on(const std::string& address, uint16_t& port) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  socklen_t size = sizeof name;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (inet_pton(AF_INET, address.c_str(), &name.sin_addr) != 1 || fd < 0 ||
      bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0 || listen(fd, 64) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0)
    throw EnvError("cannot listen on " + address + ": " + std::strerror(errno));
  port = ntohs(name.sin_port);
  return fd;
}

/// Returns a connected socket, or -1 and errno if there is no connection in time.
int connect_to(const std::string& address, uint16_t port) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(port);
  inet_pton(AF_INET, address.c_str(), &name.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  timeval time{static_cast<time_t>(kProbeConnectSeconds), 0};
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0) return fd;
  const int error = errno == EINPROGRESS ? ETIMEDOUT : errno;
  close(fd);
  errno = error;
  return -1;
}

/// Measures the link to a host: its latency, half of the median round trip in seconds, and its bandwidth in bytes per
/// second over several large blocks; or the fault.
Json measured_link_to(const std::string& name, const std::string& address, uint16_t port) {
  Json link = {{"to", name}};
  const int fd = connect_to(address, port);
  if (fd < 0) {
    link["fault"] = "cannot connect to " + address + ": " + std::strerror(errno);
    return link;
  }
  std::vector<char> block(kBlockBytes);
  std::vector<double> trips;
  bool works = true;
  for (int i = 0; works && i < kPings; ++i) {
    const double begin = steady_seconds();
    block[0] = 'P';
    works = exchange(fd, block.data(), kPingBytes, true) && exchange(fd, block.data(), kPingBytes, false);
    trips.push_back(steady_seconds() - begin);
  }
  const double begin = steady_seconds();
  double bytes = 0, seconds = 0;
  while (works && seconds < kSendSeconds) {
    block[0] = 'B';
    works = exchange(fd, block.data(), kPingBytes, true) && exchange(fd, block.data(), kBlockBytes, true) &&
            exchange(fd, block.data(), kPingBytes, false);
    bytes += static_cast<double>(kBlockBytes);
    seconds = steady_seconds() - begin;
  }
  close(fd);
  if (!works) {
    link["fault"] = "the connection to " + address + " was lost";
    return link;
  }
  std::nth_element(trips.begin(), trips.begin() + kPings / 2, trips.end());
  link["latency"] = trips[kPings / 2] / 2;
  link["bandwidth"] = bytes / seconds;
  return link;
}

}  // namespace

int probe_this_host(const std::string& interface) {
  std::signal(SIGPIPE, SIG_IGN);
  uint16_t port = 0;
  const std::string address = own_address(interface);
  const int listener = listen_on(address, port);
  std::thread([listener] {
    Visitors visitors(most_unauthenticated(kMostVisitors));
    for (;;) {
      const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd >= 0)
        visitors.welcome(fd);
      else
        std::this_thread::sleep_for(std::chrono::milliseconds(50));  // no descriptor is available
    }
  }).detach();
  utsname system{};
  uname(&system);
  const Json facts = {{"machine", system.machine},
                      {"system", std::string(system.sysname) + " " + system.release},
                      {"address", address},
                      {"port", port},
                      {"cores", allowed_processors()},
                      {"gpus", gpus()},
                      {"memory", available_memory()},
                      {"disk", free_disk()},
                      {"time", wall_seconds()}};
  std::cout << kProbeLine << facts.dump() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    const Json others = Json::parse(line, nullptr, false);
    if (!others.is_array()) continue;
    for (const Json& other : others)
      std::cout << kLinkLine << measured_link_to(other.at(0), other.at(1), other.at(2)).dump() << std::endl;
  }
  std::cout.flush();
  _exit(kExitDone);  // threads still serve
}

}  // namespace trainctl::hosts
