// The remote-execution listener of a process that a cluster manager has started: for each connection that has the job's
// token it runs a script, as sshd would.
#include "launcher/clusters/remote_listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "engine/base/error.h"
#include "engine/base/json_field.h"
#include "engine/base/machine_limits.h"
#include "engine/base/open_files.h"
#include "engine/base/tls_stream.h"
#include "launcher/signals.h"

namespace trainctl::clusters {
namespace {

constexpr double kHandshakeSeconds = 10, kRequestSeconds = 10;
/// Largest number of unauthenticated peers, each with a process. Beyond it a new one ends the
/// oldest.
constexpr size_t kMostUnauthenticated = 64;
constexpr size_t kMostLine = 64, kMostScript = 1 << 16;
constexpr int kConnectMs = 3000, kRetryMs = 250;
constexpr int kNoCode = -1;

using Clock = std::chrono::steady_clock;

int number_after(const std::string& line, const std::string& word) {
  if (!line.starts_with(word)) return kNoCode;
  const std::string digits = line.substr(word.size());
  const bool is_number =
      !digits.empty() && digits.size() < 7 && digits.find_first_not_of("0123456789") == std::string::npos;
  return is_number ? std::stoi(digits) : kNoCode;
}

/// Runs in a child of the listener. The script is killed when the connection ends.
void run_script(TlsStream& stream, const std::string& script) {
  int in[2], out[2];
  if (pipe(in) != 0 || pipe(out) != 0) return;
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    restore_signals();
    dup2(in[0], 0);
    dup2(out[1], 1);
    for (const int fd : {in[0], in[1], out[0], out[1]}) close(fd);
    setenv(kReachedAt, stream.own_address().c_str(), 1);
    execl("/bin/sh", "sh", "-c", script.c_str(), nullptr);
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  if (pid < 0) return;
  try {
    stream.copy(out[0], in[1], true);
  } catch (const EnvError&) {
    kill(pid, SIGKILL);  // its output has no reader
  }
  waitpid(pid, nullptr, 0);
}

/// Returns the code of "end", or kNoCode. `proved`: the client has the token.
int serve(int socket, const std::string& token, const std::function<void()>& proved) {
  try {
    const auto stream = TlsStream::accept(socket, token, kHandshakeSeconds);
    proved();
    const std::string request = stream->read_line(kMostLine, kRequestSeconds);
    if (const int size = number_after(request, "run "); size > 0 && static_cast<size_t>(size) <= kMostScript)
      run_script(*stream, stream->read_bytes(static_cast<size_t>(size), kRequestSeconds));
    if (request == "ping") stream->write("listener\n");
    return number_after(request, "end ");
  } catch (const EnvError& error) {
    dprintf(STDERR_FILENO, "refused a connection: %s\n", error.what());
    return kNoCode;
  }
}

/// Message to the listener from a process that serves a connection, sent in one write.
struct ConnectionMessage {
  pid_t pid = 0;
  bool ends = false;  ///< true: the run is over; false: the client has proved that it has the token
  int code = kNoCode;
};

/// Signal that asked this process to end; 0: none.
volatile std::sig_atomic_t asked_to_end = 0;
void ask_to_end(int signal) { asked_to_end = signal; }

/// The processes that serve connections.
class Served {
 public:
  Served() {
    if (pipe2(pipe_.data(), O_CLOEXEC) != 0)
      throw EnvError(std::string("cannot create a pipe: ") + describe_errno(errno));
    fcntl(pipe_[0], F_SETFL, O_NONBLOCK);
  }

  int message_fd() const { return pipe_[0]; }

  /// Returns the run's exit code once a client has sent it.
  std::optional<int> look() {
    for (ConnectionMessage message; read(pipe_[0], &message, sizeof message) == sizeof message;) {
      if (message.ends) return message.code;
      if (std::erase(newcomers_, message.pid) > 0) clients_.insert(message.pid);
      last_client_ = Clock::now();
    }
    for (pid_t ended; (ended = waitpid(-1, nullptr, WNOHANG)) > 0;) {
      std::erase(newcomers_, ended);
      clients_.erase(ended);
    }
    if (!clients_.empty()) last_client_ = Clock::now();
    return std::nullopt;
  }

  /// Seconds since a client with the token was connected, or since the start.
  double seconds_alone() const { return std::chrono::duration<double>(Clock::now() - last_client_).count(); }

  void serve_in_process(int listener, int socket, const std::string& token) {
    if (newcomers_.size() >= most_unauthenticated(kMostUnauthenticated)) {
      kill(newcomers_.front(), SIGKILL);
      newcomers_.pop_front();
    }
    const pid_t pid = fork();
    if (pid > 0) newcomers_.push_back(pid);
    if (pid != 0) return;
    for (const int number : {SIGTERM, SIGINT, SIGHUP}) std::signal(number, SIG_IGN);
    close(listener);
    const int code = serve(socket, token, [this] { report({getpid(), false}); });
    _exit(code == kNoCode || report({getpid(), true, code}) ? kExitDone : kExitEnv);
  }

 private:
  bool report(const ConnectionMessage& message) const {
    return write(pipe_[1], &message, sizeof message) == sizeof message;
  }

  std::array<int, 2> pipe_{};
  std::deque<pid_t> newcomers_;  ///< the oldest first
  std::set<pid_t> clients_;      ///< have proved that they have the token
  Clock::time_point last_client_ = Clock::now();
};

/// Returns a connected socket, or -1 and the reason in `why`.
int connect_to(const std::string& name, int port, std::string& why) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int error = getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    why = name + ": " + gai_strerror(error);
    return -1;
  }
  int connected = -1;
  for (const addrinfo* at = found; at != nullptr && connected < 0; at = at->ai_next) {
    const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) continue;
    int fault = connect(fd, at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    if (fault == EINPROGRESS) {
      pollfd ready{fd, POLLOUT, 0};
      socklen_t size = sizeof fault;
      if (poll(&ready, 1, kConnectMs) <= 0)
        fault = ETIMEDOUT;
      else
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &fault, &size);
    }
    if (fault == 0) {
      connected = fd;
    } else {
      why = name + ": " + std::strerror(fault);
      close(fd);
    }
  }
  freeaddrinfo(found);
  return connected;
}

std::unique_ptr<TlsStream> try_listener(const ListenerAddress& listener, const std::string& token, std::string& why) {
  for (const std::string& address : listener.addresses) {
    const int fd = connect_to(address, listener.port, why);
    if (fd < 0) continue;
    try {
      return TlsStream::connect(fd, token, kHandshakeSeconds);
    } catch (const EnvError& error) {
      why = address + " did not prove that it has the job's token: " + error.what();
    }
  }
  return nullptr;
}

std::unique_ptr<TlsStream> open_listener(const ListenerAddress& listener, const std::string& token, double seconds) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  std::string why;
  for (;;) {
    if (auto stream = try_listener(listener, token, why)) return stream;
    if (Clock::now() > end) throw EnvError(listener.name + " cannot be reached: " + why);
    usleep(kRetryMs * 1000);
  }
}

class ListenerTransport : public hosts::Transport {
 public:
  ListenerTransport(std::vector<ListenerAddress> listeners, std::string own_name, std::string own_address)
      : listeners_(std::move(listeners)), own_name_(std::move(own_name)), own_address_(std::move(own_address)) {}

  std::string name() const override { return "the connection"; }
  std::vector<std::string> words(const std::string& host, const std::string& script) const override {
    if (host == own_name_) return {"env", std::string(kReachedAt) + "=" + own_address_, "sh", "-c", script};
    for (const ListenerAddress& listener : listeners_) {
      if (listener.name != host) continue;
      std::vector<std::string> words{"/proc/self/exe", "dial", script, std::to_string(listener.port), listener.name};
      words.insert(words.end(), listener.addresses.begin(), listener.addresses.end());
      return words;
    }
    throw EnvError("no connection to host " + host);
  }

 private:
  const std::vector<ListenerAddress> listeners_;
  const std::string own_name_, own_address_;
};

}  // namespace

std::string to_json(const ListenerAddress& address) {
  return nlohmann::json{{"host", address.name}, {"addresses", address.addresses}, {"port", address.port}}.dump();
}

std::optional<ListenerAddress> parse_listener(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("addresses") || !json["addresses"].is_array()) return std::nullopt;
  ListenerAddress address{field_or(json, "host", ""), {}, field_or(json, "port", 0)};
  for (const auto& one : json["addresses"]) {
    if (!one.is_string()) return std::nullopt;
    address.addresses.push_back(one.get<std::string>());
  }
  constexpr int kMostPort = 65'535;
  if (address.port <= 0 || address.port > kMostPort) return std::nullopt;
  return address;
}

int listen_at(int port) {
  const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1, no = 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_any;
  address.sin6_port = htons(static_cast<uint16_t>(port));
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || listen(fd, 64) != 0)
    throw EnvError("cannot listen on port " + std::to_string(port) + ": " + std::strerror(errno));
  return fd;
}

int port_of(int listener) {
  sockaddr_in6 address{};
  socklen_t size = sizeof address;
  if (getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.sin6_port);
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> found;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return found;
  for (const ifaddrs* it = all; it != nullptr; it = it->ifa_next) {
    if (it->ifa_addr == nullptr || it->ifa_addr->sa_family != AF_INET) continue;
    char text[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(it->ifa_addr)->sin_addr, text, sizeof text);
    if (!std::string(text).starts_with("127.")) found.emplace_back(text);
  }
  freeifaddrs(all);
  return found;
}

int serve_remote_execution(int listener, const std::string& token, double orphan_seconds) {
  handle_signals({SIGTERM, SIGINT, SIGHUP}, ask_to_end);
  std::signal(SIGPIPE, SIG_IGN);
  fcntl(listener, F_SETFL, fcntl(listener, F_GETFL) | O_NONBLOCK);
  Served served;
  Clock::time_point asked_at;
  for (;;) {
    std::array<pollfd, 2> ready{{{listener, POLLIN, 0}, {served.message_fd(), POLLIN, 0}}};
    poll(ready.data(), ready.size(), 1000);
    if (const auto code = served.look()) return *code;
    if (asked_to_end == 0) asked_at = Clock::now();
    const double asked_seconds = std::chrono::duration<double>(Clock::now() - asked_at).count();
    if (std::min(asked_seconds, served.seconds_alone()) > orphan_seconds) return 128 + asked_to_end;
    const int socket = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) usleep(kRetryMs * 1000);
      continue;
    }
    served.serve_in_process(listener, socket, token);
    close(socket);
  }
}

std::string await_listener(const ListenerAddress& listener, const std::string& token, double seconds) {
  const auto stream = open_listener(listener, token, seconds);
  stream->write("ping\n");
  if (stream->read_line(kMostLine) != "listener")
    throw EnvError(listener.name + " runs a different version of trainctl; install the same version on all hosts");
  return stream->own_address();
}

void end_listeners(std::vector<ListenerAddress> listeners, const std::string& token, int code, double seconds) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  for (;;) {
    std::erase_if(listeners, [&](const ListenerAddress& listener) {
      try {
        open_listener(listener, token, 0)->write("end " + std::to_string(code) + "\n");
        return true;
      } catch (const EnvError&) {
        return false;
      }
    });
    if (listeners.empty() || Clock::now() > end) return;
    usleep(kRetryMs * 1000);
  }
}

int dial(const ListenerAddress& listener, const std::string& token, const std::string& script) {
  constexpr double kPatience = 3600;  // the launcher kills this sooner
  std::signal(SIGPIPE, SIG_IGN);
  const auto stream = open_listener(listener, token, kPatience);
  stream->write("run " + std::to_string(script.size()) + "\n" + script);
  stream->copy(STDIN_FILENO, STDOUT_FILENO, false);
  return 0;
}

std::unique_ptr<hosts::Transport> listener_transport(std::vector<ListenerAddress> listeners, std::string own_name,
                                                     std::string own_address) {
  return std::make_unique<ListenerTransport>(std::move(listeners), std::move(own_name), std::move(own_address));
}

}  // namespace trainctl::clusters
