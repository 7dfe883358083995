// Run folders: reserving a number, and listing existing runs.
#include "launcher/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/error.h"
#include "engine/base/machine_limits.h"

namespace trainctl {
namespace fs = std::filesystem;
namespace {

std::optional<int> parse_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

/// Numbers N of the folders `prefix`<N> in `directory`, ascending.
std::vector<int> numbered_folders(const std::string& directory, std::string_view prefix) {
  std::vector<int> numbers;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(prefix) || !entry.is_directory(ignored)) continue;
    if (const auto number = parse_number(std::string_view(name).substr(prefix.size()))) numbers.push_back(*number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

constexpr std::string_view kReserved = "outcome.json.reserved";
constexpr size_t kReservedBytes = 1024;

/// Replaces the content of a file in place: blocks that the file already has need no disk space.
bool put_whole(int fd, std::string_view text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t put = pwrite(fd, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    done += static_cast<size_t>(put);
  }
  return ftruncate(fd, static_cast<off_t>(text.size())) == 0;
}

void make_directory(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error)
    throw EnvError("cannot create the folder " + path + ": " + error.message() +
                   "; set launch.log_dir to a writable folder");
}

/// Syncs the names in a folder to disk, so that a run's checkpoints are found after a loss of power. If the file system
/// does not support it, the run continues.
void sync_names(const fs::path& folder) {
  const int fd = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  fsync(fd);
  close(fd);
}

}  // namespace

RunDirectory::RunDirectory(std::string log_dir, int run) : log_dir_(std::move(log_dir)), run_(run) {
  std::error_code ignored;
  if (fs::is_directory(path() + "/server.0", ignored))
    names_.workers = static_cast<int>(numbered_folders(path(), "rank.").size());
}

RunDirectory RunDirectory::create(const std::string& log_dir, int workers, int servers) {
  auto spare = std::make_unique<SpareFiles>();
  std::vector<fs::path> is_missing;
  std::error_code ignored;
  for (fs::path path = fs::absolute(log_dir).lexically_normal(); !fs::exists(path, ignored); path = path.parent_path())
    is_missing.push_back(path);
  make_directory(log_dir);
  for (const fs::path& made : is_missing) sync_names(made.parent_path());
  const std::vector<int> taken = list_runs(log_dir);
  for (int run = taken.empty() ? 1 : taken.back() + 1;; ++run) {
    RunDirectory directory(log_dir, run);
    if (mkdir(directory.path().c_str(), 0777) != 0) {
      if (errno == EEXIST) continue;
      throw EnvError("cannot create the folder " + directory.path() + ": " + describe_errno(errno) +
                     "; set launch.log_dir to a writable folder");
    }
    directory.names_ = {workers};
    NewRunFolder folder(directory, std::move(spare));
    for (int rank = 0; rank < workers + servers; ++rank) make_directory(directory.rank_path(rank));
    sync_names(log_dir);
    folder.keep();
    return directory;
  }
}

/// Writes in place, since a full disk may still have space for an existing file.
void RunDirectory::write(std::string_view name, std::string_view text, FileReaders readers) const {
  const mode_t mode = readers == FileReaders::owner ? 0600 : 0666;
  const int fd = open(file(name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, mode);
  const bool written = fd >= 0 && put_whole(fd, text);
  int error = errno;
  if (fd >= 0 && close(fd) == 0 && written) return;
  if (written) error = errno;
  throw EnvError("cannot write " + file(name) + ": " + describe_errno(error));
}

void RunDirectory::reserve_outcome() const { write(kReserved, std::string(kReservedBytes, ' ')); }

void RunDirectory::write_outcome(std::string_view text, std::string_view brief) const {
  const std::string reserved = file(kReserved), path = file("outcome.json");
  const int fd = open(reserved.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  const bool written = fd >= 0 && (put_whole(fd, text) || put_whole(fd, brief));
  int error = errno;
  if (fd >= 0 && close(fd) == 0 && written && rename(reserved.c_str(), path.c_str()) == 0) return;
  if (written) error = errno;
  throw EnvError("cannot write " + path + ": " + describe_errno(error));
}

std::vector<int> RunDirectory::ranks() const {
  std::vector<int> all = numbered_folders(path(), "rank.");
  for (const int server : numbered_folders(path(), "server.")) all.push_back(names_.workers + server);
  return all;
}

SpareFiles::SpareFiles() {
  files_.fill(-1);
  for (int& file : files_) {
    file = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (file >= 0) continue;
    const int error = errno;
    release();
    throw EnvError("cannot create the folder of a run: " + describe_errno(error));
  }
}

void SpareFiles::release() {
  for (int& file : files_)
    if (file >= 0) close(std::exchange(file, -1));
}

NewRunFolder::~NewRunFolder() {
  files_.reset();
  std::error_code ignored;
  if (!is_kept_) fs::remove_all(path_, ignored);
}

int64_t start_ns(const RunDirectory& directory) {
  struct stat status {};
  if (stat(directory.file("job.yaml").c_str(), &status) != 0) return 0;
  return status.st_mtim.tv_sec * int64_t{1'000'000'000} + status.st_mtim.tv_nsec;
}

std::string_view to_string(RunState state) {
  static constexpr std::string_view kNames[] = {"running", "done", "stopped", "failed", "lost"};
  return kNames[static_cast<int>(state)];
}

RunState state_of(const RunDirectory& directory) {
  const int fd = open(directory.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool locked = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (fd >= 0) close(fd);
  if (locked) return RunState::running;
  std::ifstream file(directory.file("outcome.json"));
  const auto outcome = nlohmann::json::parse(file, nullptr, false);
  const auto code = outcome.is_object() ? outcome.find("exit_code") : outcome.end();
  if (code == outcome.end() || !code->is_number_integer()) return RunState::lost;
  if (*code == kExitDone) return RunState::done;
  return *code > 128 ? RunState::stopped : RunState::failed;
}

RunLock::RunLock(const RunDirectory& directory)
    : fd_(open(directory.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  // No other process holds it, except briefly in state_of().
  while (fd_ >= 0 && flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
  }
}

RunLock::~RunLock() {
  if (fd_ >= 0) close(fd_);
}

std::vector<int> list_runs(const std::string& log_dir) { return numbered_folders(log_dir, ""); }

}  // namespace trainctl
