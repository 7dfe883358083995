// The process that writes the ranks' logs.
#include "launcher/log_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/machine_limits.h"
#include "launcher/log_writer.h"
#include "launcher/quiet_fork.h"

namespace trainctl {
namespace {

namespace asio = boost::asio;

enum ProcessFrame : uint32_t { kOpen, kWrite, kSkip, kClose };

struct Header {
  uint32_t kind = 0, stream = 0;
  int64_t ns = 0, value = 0;
  uint64_t size = 0;
};

constexpr size_t kLogProcessReadBytes = 1 << 19;
/// The time that the destructor waits for a process that has nothing left to write.
constexpr int kMostLogEndLooks = 1000;  // a millisecond apart

template <class T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

bool send_all_to_log(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  return true;
}

/// The side of the log process.
class Writers {
 public:
  explicit Writers(const LogLimits& limits) : limits_(limits) {}

  LogReport handle(const Header& header, std::string_view bytes) {
    if (header.kind == kOpen) open(header, bytes);
    const auto found = writers_.find(header.stream);
    if (found == writers_.end()) return {.stream = header.stream};
    LogWriter& writer = *found->second;
    if (header.kind == kWrite) writer.write(bytes, header.ns);
    if (header.kind == kSkip) writer.skip(header.value, header.ns != 0);
    const LogReport report{header.stream, writer.error(), writer.lost_bytes(), header.kind == kClose ? 1 : 0};
    if (header.kind == kClose) writers_.erase(found);
    return report;
  }

 private:
  void open(const Header& header, std::string_view bytes) {
    const size_t end = std::min(bytes.find('\0'), bytes.size() - 1);
    LogFiles files{std::string(bytes.substr(0, end)), std::string(bytes.substr(end + 1))};
    writers_[header.stream] =
        std::make_unique<LogWriter>(std::move(files), limits_, static_cast<int>(header.value), header.ns);
  }

  LogLimits limits_;
  std::map<uint32_t, std::unique_ptr<LogWriter>> writers_;
};

[[noreturn]] void write_logs(int socket, const LogLimits& limits) {
  prctl(PR_SET_NAME, "trainctl-logs");
  close_all_but(socket);
  Writers writers(limits);
  std::string buffer, reports;
  size_t size = 0;
  for (;;) {
    buffer.resize(std::max(buffer.size(), size + kLogProcessReadBytes));
    const ssize_t got = recv(socket, buffer.data() + size, buffer.size() - size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) _exit(0);
    size += static_cast<size_t>(got);
    size_t at = 0;
    for (Header header; size - at >= sizeof header;) {
      std::memcpy(&header, buffer.data() + at, sizeof header);
      if (size - at - sizeof header < header.size) break;
      const std::string_view bytes(buffer.data() + at + sizeof header, header.size);
      reports = bytes_of(writers.handle(header, bytes));
      send_all_to_log(socket, reports);  // fails if the launcher has ended; what it sent before is still written
      at += sizeof header + header.size;
    }
    std::memmove(buffer.data(), buffer.data() + at, size - at);
    size -= at;
  }
}

}  // namespace

LogProcess::LogProcess(asio::io_context& loop, const LogLimits& limits, OnReport on_report)
    : on_report_(std::move(on_report)), socket_(loop) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw EnvError(std::string("cannot create a socket: ") + describe_errno(errno));
  }
  pid_ = quiet_fork();
  if (pid_ == 0) write_logs(ends[1], limits);
  const int error = errno;
  ::close(ends[1]);
  if (pid_ < 0) {
    ::close(ends[0]);
    throw EnvError(std::string("cannot fork: ") + describe_errno(error));
  }
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  socket_.assign(ends[0]);
  await_reports();
}

LogProcess::~LogProcess() {
  socket_.close();
  if (pending_bytes_ > 0) kill(pid_, SIGKILL);
  for (int look = 0; look < kMostLogEndLooks && waitpid(pid_, nullptr, WNOHANG) == 0; ++look) usleep(1000);
}

void LogProcess::open(uint32_t stream, const LogFiles& files, int restart, int64_t ns) {
  send(kOpen, stream, ns, restart, files.directory + '\0' + files.name);
}

void LogProcess::write(uint32_t stream, std::string_view bytes, int64_t ns) { send(kWrite, stream, ns, 0, bytes); }

void LogProcess::skip(uint32_t stream, int64_t bytes, bool mid_line) {
  send(kSkip, stream, mid_line ? 1 : 0, bytes, "");
}

void LogProcess::close(uint32_t stream) { send(kClose, stream, 0, 0, ""); }

void LogProcess::send(uint32_t kind, uint32_t stream, int64_t ns, int64_t value, std::string_view bytes) {
  if (dead_) return;
  const Header header{kind, stream, ns, value, bytes.size()};
  unsent_ += bytes_of(header);
  unsent_ += bytes;
  const auto size = static_cast<int64_t>(sizeof header + bytes.size());
  unreported_.push_back(size);
  pending_bytes_ += size;
  flush();
}

void LogProcess::flush() {
  while (sent_ < unsent_.size()) {
    const ssize_t put = ::send(socket_.native_handle(), unsent_.data() + sent_, unsent_.size() - sent_, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (put <= 0) return died();
    sent_ += static_cast<size_t>(put);
  }
  if (sent_ * 2 >= unsent_.size()) unsent_.erase(0, std::exchange(sent_, 0));
  if (!unsent_.empty()) await_room();
}

void LogProcess::await_room() {
  if (std::exchange(awaiting_room_, true)) return;
  socket_.async_wait(asio::posix::stream_descriptor::wait_write,
                     [this, alive = std::weak_ptr(alive_)](const boost::system::error_code& error) {
                       if (error || alive.expired()) return;
                       awaiting_room_ = false;
                       if (!dead_) flush();
                     });
}

void LogProcess::await_reports() {
  socket_.async_wait(asio::posix::stream_descriptor::wait_read,
                     [this, alive = std::weak_ptr(alive_)](const boost::system::error_code& error) {
                       if (error || alive.expired()) return;
                       read_reports();
                       if (!dead_) await_reports();
                     });
}

void LogProcess::read_reports() {
  char buffer[8192];
  ssize_t got = 0;
  do {
    got = recv(socket_.native_handle(), buffer, sizeof buffer, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
  if (got <= 0) return died();
  partial_report_.append(buffer, static_cast<size_t>(got));
  size_t at = 0;
  for (LogReport report; partial_report_.size() - at >= sizeof report; at += sizeof report) {
    std::memcpy(&report, partial_report_.data() + at, sizeof report);
    pending_bytes_ -= unreported_.front();
    unreported_.pop_front();
    ++reports_;
    if (on_report_) on_report_(report);
  }
  partial_report_.erase(0, at);
}

void LogProcess::died() { dead_ = true; }

bool LogProcess::finish(double seconds) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point moved = Clock::now();
  while (pending_bytes_ > 0 && !dead_) {
    const int64_t before = reports_;
    pollfd ready{socket_.native_handle(), static_cast<short>(sent_ < unsent_.size() ? POLLIN | POLLOUT : POLLIN), 0};
    poll(&ready, 1, 50);
    flush();
    if (!dead_) read_reports();
    if (reports_ != before) moved = Clock::now();
    if (Clock::now() - moved > std::chrono::duration<double>(seconds)) break;
  }
  return pending_bytes_ == 0;
}

}  // namespace trainctl
