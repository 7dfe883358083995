// Reads until the end of a file or stream, as cat does, but does not wait for ever for the writer of a FIFO.
#include "engine/spec/job_text.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/spec/yaml_tree.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kWriterWait{3};
constexpr int kPollMs = 20;
constexpr auto kPipeFs = 0x50495045;  // PIPEFS_MAGIC of linux/magic.h

class Descriptor {
 public:
  Descriptor(int fd, bool owned) : fd_(fd), owned_(owned) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (owned_ && fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
  bool owned_;
};

fs::path folder_of(const fs::path& file) { return file.parent_path(); }

/// Returns the paths of the first few .yaml files of a folder, for a hint.
std::vector<std::string> jobs_in(const fs::path& folder) {
  constexpr size_t kMost = 8;
  std::vector<std::string> found;
  std::error_code error;
  const fs::path start = folder.empty() ? fs::path(".") : folder;
  for (fs::directory_iterator at(start, error), end; !error && at != end; at.increment(error)) {
    const fs::path name = at->path().filename();
    if (name.extension() == ".yaml" || name.extension() == ".yml") found.push_back(folder / name);
  }
  std::sort(found.begin(), found.end());
  found.resize(std::min(found.size(), kMost));
  return found;
}

class Reader {
 public:
  explicit Reader(const std::string& file)
      : file_(file),
        is_stdin_(file == "-"),
        // A blocking open of a FIFO waits for its writer.
        fd_(is_stdin_ ? STDIN_FILENO : open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC), !is_stdin_) {}

  JobText read() {
    if (file_.empty()) fail("its name is empty", "is a shell variable unset?");
    struct stat info {};
    if (fd_.get() < 0 || fstat(fd_.get(), &info) != 0) {
      const int error = errno;
      fail(std::strerror(error), error == ENOENT ? did_you_mean(file_, jobs_in(folder_of(file_))) : "");
    }
    if (S_ISDIR(info.st_mode)) {
      const std::vector<std::string> jobs = jobs_in(file_);
      fail("it is a folder", jobs.empty() ? "it contains no .yaml file" : "it contains " + join(jobs));
    }
    awaits_writer_ = S_ISFIFO(info.st_mode) && !is_anonymous_pipe();
    std::string text = read_all();
    return {name(), std::move(text), folder(S_ISREG(info.st_mode))};
  }

 private:
  std::string name() const { return is_stdin_ ? kStdinName : file_; }

  [[noreturn]] void fail(const std::string& why, const std::string& hint = {}) const {
    throw SpecError({name(), 0, 0}, "", "cannot read the job file: " + why, hint);
  }

  /// Returns the folder of the job file; "" for a stream. Files such as /dev/fd/63 and /dev/stdin are streams too.
  std::string folder(bool is_regular) const {
    const bool is_stream = is_stdin_ || !is_regular || file_.starts_with("/dev/") || file_.starts_with("/proc/");
    return is_stream ? "" : folder_of(file_).string();
  }

  /// True for a pipe without a name in the file system. Its writers opened it before this process did, so no further
  /// writer can appear.
  bool is_anonymous_pipe() const {
    struct statfs info {};
    return is_stdin_ || (fstatfs(fd_.get(), &info) == 0 && info.f_type == kPipeFs);
  }

  std::string read_all() {
    std::string text;
    std::array<char, 1 << 16> buffer{};
    const Clock::time_point start = Clock::now();
    // One byte past the limit is enough for read_yaml to refuse it.
    while (text.size() <= kMaxYamlBytes) {
      const size_t wanted = std::min(buffer.size(), kMaxYamlBytes + 1 - text.size());
      const ssize_t got = ::read(fd_.get(), buffer.data(), wanted);
      if (got > 0) {
        text.append(buffer.data(), static_cast<size_t>(got));
        awaits_writer_ = false;
      } else if (got == 0) {
        if (!awaits_writer_ || has_lost_writer()) break;
        if (Clock::now() - start > kWriterWait)
          fail("it is a FIFO that no process writes to", "start the writer first: trainctl init mlp > " + file_ + " &");
      } else if (errno == EAGAIN) {
        awaits_writer_ = false;  // the writer exists, but has written nothing yet
        wait(-1);
      } else if (errno != EINTR) {
        fail(std::strerror(errno));
      }
    }
    return text;
  }

  /// Returns whether a writer has come and gone without writing; waits a moment for one. One that wrote and left since
  /// the last read leaves POLLIN as well.
  bool has_lost_writer() const { return (wait(kPollMs) & (POLLHUP | POLLIN)) == POLLHUP; }

  int wait(int timeout_ms) const {
    pollfd ready{fd_.get(), POLLIN, 0};
    return poll(&ready, 1, timeout_ms) > 0 ? ready.revents : 0;
  }

  const std::string file_;
  const bool is_stdin_;
  const Descriptor fd_;
  bool awaits_writer_ = false;
};

}  // namespace

JobText read_job_text(const std::string& file) { return Reader(file).read(); }

}  // namespace trainctl
