// The process that ssh starts on a host: copies bytes between ssh and the host's agent.
#include "launcher/hosts/relay.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/machine_limits.h"
#include "engine/base/put_all.h"
#include "launcher/hosts/same_user.h"

namespace trainctl::hosts {
namespace {

namespace fs = std::filesystem;

/// The next agent deletes folders that killed agents have left, unless they are younger than this.
constexpr auto kNew = std::chrono::seconds(60);

[[noreturn]] void fail_relay(const std::string& what) { throw EnvError(what + ": " + describe_errno(errno)); }

std::string runs_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (cache != nullptr && *cache == '/') return std::string(cache) + "/trainctl/runs";
  if (home == nullptr || *home != '/') throw EnvError("neither HOME nor XDG_CACHE_HOME is set on this host");
  return std::string(home) + "/.cache/trainctl/runs";
}

/// The lock of this host: where hosts share a home directory, each has a separate lock.
std::string lock_path(const std::string& folder) {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) fail_relay("this host has no name");
  std::string host = name.data();
  std::replace(host.begin(), host.end(), '/', '_');
  return folder + "/lock." + host;
}

/// A descriptor that holds the lock of a folder; -1: an agent holds it, it belongs to another host, or the folder does
/// not exist.
int lock_of(const std::string& folder, int flags) {
  const int fd = open(lock_path(folder).c_str(), O_RDWR | O_CLOEXEC | flags, 0600);
  if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

void delete_if_left(const std::string& folder) {
  const int lock = lock_of(folder, 0);
  if (lock < 0) return;
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  close(lock);
}

void delete_what_was_left(const std::string& runs) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(runs, error)) {
    const auto age = fs::file_time_type::clock::now() - fs::last_write_time(entry.path(), error);
    if (!error && age > kNew) delete_if_left(entry.path());
  }
}

/// The name is relative, since a socket's path has at most 107 bytes and a home directory may have more.
sockaddr_un socket_name() {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::strcpy(name.sun_path, "socket");
  return name;
}

int connect_to(const std::string& folder) {
  if (chdir(folder.c_str()) != 0) return -1;
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un name = socket_name();
  const bool is_connected = fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0;
  if (is_connected && is_of_this_user(fd)) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

int listen_in(const std::string& folder) {
  if (chdir(folder.c_str()) != 0) fail_relay("cannot enter " + folder);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un name = socket_name();
  if (fd < 0 || bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0 || listen(fd, 8) != 0)
    fail_relay("cannot listen in " + folder);
  return fd;
}

[[noreturn]] void become_agent(const std::string& folder, int listener, int lock,
                               const std::function<int(const std::string&, int)>& serve) {
  setsid();
  std::signal(SIGHUP, SIG_IGN);
  prctl(PR_SET_NAME, "trainctl-agent");
  const int null = open("/dev/null", O_RDWR);
  const int log = open((folder + "/agent.log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(null, 0);
  dup2(null, 1);
  dup2(log >= 0 ? log : null, 2);
  for (int fd = 3; fd < 256; ++fd)
    if (fd != listener && fd != lock) close(fd);
  int code = kExitEnv;
  try {
    code = serve(folder, listener);
  } catch (const std::exception& error) {
    const std::string text = std::string(error.what()) + "\n";
    if (write(2, text.data(), text.size()) < 0) _exit(kExitBug);
  }
  _exit(code);
}

void start_agent(const std::string& runs, const std::string& folder,
                 const std::function<int(const std::string&, int)>& serve) {
  std::error_code error;
  fs::create_directories(runs, error);
  if (chmod(runs.c_str(), 0700) != 0) fail_relay("cannot use " + runs);
  delete_what_was_left(runs);
  if (mkdir(folder.c_str(), 0700) != 0) fail_relay("cannot create the folder " + folder);
  const int lock = lock_of(folder, O_CREAT);
  if (lock < 0) fail_relay("cannot lock " + folder);
  const int listener = listen_in(folder);
  const pid_t pid = fork();
  if (pid < 0) fail_relay("cannot start the agent");
  if (pid == 0) become_agent(folder, listener, lock, serve);
  close(listener);
  close(lock);
}

/// Copies each direction in a separate process; in one, both ends could wait for each other.
void copy(int from, int to) {
  std::array<char, 1 << 16> buffer{};
  for (;;) {
    const ssize_t got = read(from, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || !put_all(to, {buffer.data(), static_cast<size_t>(got)})) return;
  }
}

}  // namespace

int relay_to_agent(const std::string& id, bool may_start,
                   const std::function<int(const std::string& folder, int listener)>& serve) {
  const bool is_id = !id.empty() && id.size() <= 64 && id.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!is_id) throw EnvError("an agent ID must consist of hexadecimal digits");
  std::signal(SIGPIPE, SIG_IGN);
  const std::string runs = runs_folder(), folder = runs + "/" + id;
  int agent = connect_to(folder);
  if (agent < 0 && may_start) {
    start_agent(runs, folder, serve);
    agent = connect_to(folder);
  }
  if (agent < 0) {
    delete_if_left(folder);
    put_all(STDOUT_FILENO, std::string(kGoneLine) + "\n");
    return kExitEnv;
  }
  put_all(STDOUT_FILENO, std::string(kAgentLine) + "\n");
  const pid_t other = fork();
  if (other < 0) fail_relay("cannot copy from the agent");
  if (other == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    copy(agent, STDOUT_FILENO);
    kill(getppid(), SIGTERM);  // the agent has closed its connection and reads no more input
    _exit(0);
  }
  copy(STDIN_FILENO, agent);
  kill(other, SIGKILL);
  return 0;
}

}  // namespace trainctl::hosts
