// Writes output from a queue in a thread of its own, so that a slow reader delays nothing.
#include "cli/render/output.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string_view>
#include <utility>

namespace trainctl {
namespace {

constexpr size_t kMostWaiting = 1 << 24;

bool is_regular_file(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

/// Returns false if the reader is gone; the training continues.
bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t put = ::write(fd, text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    text.remove_prefix(static_cast<size_t>(put));
  }
  return true;
}

}  // namespace

Output::Output(int fd) : fd_(fd), is_file_(is_regular_file(fd)) {}

Output::~Output() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Output::write(std::string text) {
  if (is_file_) {
    write_all(fd_, text);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (reader_is_gone_ || text.empty()) return;
    queue_ += text;
  }
  changed_.notify_all();
  if (thread_.joinable()) return;
  // Blocks signals: only the event loop's thread handles them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { write_queue(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

bool Output::is_behind() const {
  const std::lock_guard lock(mutex_);
  return queue_.size() + writing_ > kMostWaiting;
}

void Output::flush() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return reader_is_gone_ || (queue_.empty() && writing_ == 0); });
}

void Output::write_queue() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ended_ || !queue_.empty(); });
    if (queue_.empty() || reader_is_gone_) return;
    const std::string text = std::exchange(queue_, {});
    writing_ = text.size();
    lock.unlock();
    const bool written = write_all(fd_, text);
    lock.lock();
    writing_ = 0;
    reader_is_gone_ = !written;
    changed_.notify_all();
    if (reader_is_gone_) return;
  }
}

}  // namespace trainctl
