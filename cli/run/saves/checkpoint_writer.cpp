// The process that writes checkpoints to disk, outside of the ranks and the launcher, so that neither a killed rank nor
// a hanging disk delays anything.
#include "cli/run/saves/checkpoint_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <set>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/machine_limits.h"
#include "engine/base/text.h"
#include "engine/spec/parse.h"
#include "engine/train/checkpoint/save_policy.h"
#include "engine/train/checkpoint/verify_checkpoint.h"
#include "engine/train/checkpoint/write_checkpoint.h"
#include "launcher/quiet_fork.h"

namespace trainctl {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLook{5};
/// Pause between attempts to write a checkpoint.
constexpr milliseconds kFirstPause{500}, kLongestPause{30'000};
/// Number of attempts to write the last checkpoint after the ranks have ended.
constexpr int kLastTries = 3;

/// A rank's image in the writer: mapped once the rank has set its size, and mapped again when the size changes.
class SavedImageView {
 public:
  explicit SavedImageView(int fd) : fd_(fd) {}
  SavedImageView(SavedImageView&& other) noexcept : fd_(other.fd_), bytes_(std::exchange(other.bytes_, {})) {}
  ~SavedImageView() { unmap(); }

  std::span<const std::byte> bytes() {
    struct stat info {};
    if (fstat(fd_, &info) != 0 || info.st_size == static_cast<off_t>(bytes_.size())) return bytes_;
    unmap();
    if (info.st_size == 0) return bytes_;
    void* memory = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_SHARED, fd_, 0);
    if (memory == MAP_FAILED) throw EnvError(std::string("cannot map a rank's state: ") + describe_errno(errno));
    bytes_ = {static_cast<const std::byte*>(memory), static_cast<size_t>(info.st_size)};
    return bytes_;
  }

 private:
  void unmap() {
    if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
    bytes_ = {};
  }

  int fd_;
  std::span<const std::byte> bytes_;
};

/// Pages that have been synced: the next read comes from the disk.
void drop_cached_pages(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  close(fd);
}

/// The writer's side.
class Writer {
 public:
  Writer(const PlannedJob& job, const std::optional<StoredBase>& base, CheckpointDirectory directory, int attempt,
         int run, SharedMemory& memory, const std::vector<int>& images, int launcher)
      : job_(job), directory_(std::move(directory)), memory_(memory), board_(memory.saves()), launcher_(launcher) {
    facts_.version = TRAINCTL_VERSION;
    facts_.lineage = directory_.owner() ? directory_.owner()->lineage : "";
    facts_.weights_only = !job.spec.train.saves_state();
    facts_.base = base;
    facts_.run = run;
    facts_.attempt = attempt;
    facts_.job = to_yaml(without_env(job.spec));
    for (const int fd : images) views_.emplace_back(fd);
  }

  void run() {
    while (!ended_ || is_ready() || has_validation()) {
      if (is_ready())
        save();
      else if (has_validation())
        note_validation();
      else
        wait(kLook);
    }
  }

 private:
  /// Returns whether all ranks have copied their parts of the save in progress.
  bool is_ready() const {
    if (board_.saving() < 0 && !board_.take_offer()) return false;
    return board_.is_reported(board_.saving()) && is_copied(memory_);
  }

  /// Returns whether the state that was written last has since been validated.
  bool has_validation() const { return !written_.empty() && board_.validation_of(facts_.step) != nullptr; }

  void note_validation() {
    try {
      add_validation(written_, job_, *board_.validation_of(facts_.step));
      retain();
    } catch (const EnvError& error) {
      report(
          fmt::format("cannot add the validation results of step {} to its checkpoint: {}", facts_.step, error.what()));
    }
    written_.clear();
  }

  /// Writes the save, retrying after failures. The images do not change until it is finished.
  void save() {
    milliseconds pause = kFirstPause;
    for (int last_tries = 0;;) {
      try {
        return write();
      } catch (const AlreadyPublished&) {  // by a writer that was killed before it could report it
        return board_.finished(true);
      } catch (const LaterAttempt& error) {  // retrying cannot succeed
        report_failure(error.what(), "");
        break;
      } catch (const ImageNotFinite& error) {  // retrying cannot succeed
        report_failure(error.what(), "");
        break;
      } catch (const EarlierSaveGone& error) {  // the next save has all rows
        report_failure(error.what(), "");
        break;
      } catch (const EnvError& error) {
        board_.try_failed();
        report_failure(error.what(), ended_ || board_.must_give_way() ? "" : kTryingAgain);
      }
      if (board_.must_give_way() || (ended_ && ++last_tries == kLastTries)) break;
      if (ended_) pause = kFirstPause;
      wait_to_retry(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
    board_.finished(false);
  }

  /// Reports each error once, however often the write is retried.
  void report_failure(const std::string& error, std::string_view next) {
    if (error == last_error_) return;
    last_error_ = error;
    report(kTroubleMark + fmt::format("checkpoint of step {} not written: {}{}", board_.saving(), error, next));
  }

  void write() {
    const Clock::time_point start = Clock::now();
    if (has_validation()) note_validation();
    facts_.step = board_.saving();
    written_.clear();
    const SaveBoard::Position* validated = board_.validation_of(facts_.step);
    facts_.position = validated != nullptr ? *validated : board_.position();
    Images images;
    int64_t bytes = 0;
    const size_t count = views_.size() / static_cast<size_t>(image_sets(job_));
    for (size_t i = 0; i < count; ++i) {
      images.push_back(views_[static_cast<size_t>(board_.set()) * count + i].bytes());
      bytes += static_cast<int64_t>(images.back().size());
    }
    const std::string path = write_checkpoint(directory_, job_, facts_, images, board_.written_bytes);
    board_.finished(true);
    if (validated == nullptr) written_ = path;
    last_error_.clear();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    report(fmt::format("{} of step {}: {} in {:.2f} s, {}",
                       job_.spec.train.saves_state() ? "checkpoint" : "final weights", facts_.step, format_bytes(bytes),
                       seconds, path));
    retain();
  }

  void retain() {
    try {
      const CheckpointSpec spec = job_.spec.train.saving();
      const std::vector<CheckpointEntry> entries = directory_.list_own();
      if (!is_replacement_whole(entries, static_cast<size_t>(spec.keep))) return;
      std::set<int64_t> also;
      if (const auto best = best_step(entries, spec.keep_best)) also.insert(*best);
      directory_.retain(static_cast<int>(spec.keep), also);
    } catch (const EnvError& error) {
      report(std::string("cannot delete old checkpoints: ") + error.what());
    }
  }

  /// Reads the newest checkpoint back from the disk if older ones would be deleted for it. If it is damaged, they stay.
  bool is_replacement_whole(const std::vector<CheckpointEntry>& entries, size_t keep) {
    std::vector<const CheckpointEntry*> complete;
    for (const CheckpointEntry& entry : entries)
      if (entry.complete()) complete.push_back(&entry);
    if (complete.size() <= keep) return true;
    const CheckpointEntry& newest = *complete.front();
    for (const StoredFile& file : newest.manifest.files) drop_cached_pages(newest.path + "/" + file.name);
    const Verification found = verify_checkpoint(newest.path);
    if (found.problems.empty()) return true;
    report(fmt::format("{} is damaged, so no older checkpoint is deleted: {}", newest.path, found.problems.front()));
    return false;
  }

  /// Waits that long, or less if the ranks end.
  void wait(milliseconds time) {
    if (ended_) return std::this_thread::sleep_for(time);
    pollfd end{launcher_, POLLIN, 0};
    if (poll(&end, 1, static_cast<int>(time.count())) > 0) ended_ = true;
  }

  /// Pauses before a retry. Ends early when the ranks end or reach their last state.
  void wait_to_retry(milliseconds pause) {
    const bool had_ended = ended_;
    for (const auto until = Clock::now() + pause; Clock::now() < until;) {
      wait(std::min(pause, 10 * kLook));
      if (ended_ != had_ended || board_.must_give_way()) return;
    }
  }

  void report(const std::string& line) {
    const std::string text = line + "\n";
    send(launcher_, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);  // fails if the launcher has ended
  }

  const PlannedJob& job_;
  CheckpointDirectory directory_;
  SharedMemory& memory_;
  SaveBoard& board_;
  const int launcher_;
  CheckpointFacts facts_;
  std::vector<SavedImageView> views_;
  std::string written_;  ///< the last checkpoint, if it lacks the validation of its state
  std::string last_error_;
  bool ended_ = false;
};

}  // namespace

/// A single set of images suffices for the final weights, which are saved once.
int image_sets(const PlannedJob& job) {
  return job.spec.launch.has_hosts() && job.spec.train.saves_state() ? SaveBoard::kSets : 1;
}

bool is_copied(const SharedMemory& memory) {
  const SaveBoard& board = memory.saves();
  const int64_t step = board.saving();
  if (step < 0 || board.was_offered()) return step >= 0;
  for (int rank = 0; rank < memory.num_ranks(); ++rank)
    if (memory.status(rank).copied.load(std::memory_order_acquire) != static_cast<uint64_t>(step) + 1) return false;
  return true;
}

CheckpointWriter::CheckpointWriter(const PlannedJob& job, const std::optional<StoredBase>& base,
                                   const CheckpointDirectory& directory, int attempt, int run,
                                   std::shared_ptr<SharedMemory> memory, const std::vector<int>& images)
    : memory_(std::move(memory)) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw EnvError(std::string("cannot create a socket: ") + describe_errno(errno));
  pid_ = quiet_fork();
  if (pid_ == 0) {
    prctl(PR_SET_NAME, "trainctl-save");
    std::vector<int> kept = images;
    kept.push_back(ends[1]);
    close_all_but(std::move(kept));
    try {
      Writer(job, base, directory, attempt, run, *memory_, images, ends[1]).run();
    } catch (const std::exception& error) {
      const std::string text =
          kTroubleMark + std::string("checkpoints can no longer be written: ") + error.what() + "\n";
      send(ends[1], text.data(), text.size(), MSG_NOSIGNAL);
      _exit(1);
    }
    _exit(0);
  }
  const int error = errno;
  ::close(ends[1]);
  if (pid_ < 0) {
    ::close(ends[0]);
    throw EnvError(std::string("cannot fork: ") + describe_errno(error));
  }
  fd_ = ends[0];
  fcntl(fd_, F_SETFL, O_NONBLOCK);
}

CheckpointWriter::~CheckpointWriter() {
  ::close(fd_);
  if (pid_ > 0) waitpid(pid_, nullptr, WNOHANG);
}

bool CheckpointWriter::has_ended() {
  int status = 0;
  if (pid_ <= 0) return true;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
  pid_ = 0;
  was_killed_ = WIFSIGNALED(status);
  return true;
}

bool CheckpointWriter::was_killed() {
  has_ended();
  return std::exchange(was_killed_, false);
}

std::vector<std::string> CheckpointWriter::news() {
  char buffer[4096];
  for (ssize_t got = 0; (got = recv(fd_, buffer, sizeof buffer, 0)) > 0;)
    partial_.append(buffer, static_cast<size_t>(got));
  std::vector<std::string> lines;
  for (size_t end = 0; (end = partial_.find('\n')) != std::string::npos; partial_.erase(0, end + 1))
    lines.push_back(partial_.substr(0, end));
  return lines;
}

void CheckpointWriter::kill() {
  if (pid_ > 0) ::kill(pid_, SIGKILL);
}

bool CheckpointWriter::finish(std::chrono::seconds patience, const std::function<bool()>& is_hurried) {
  shutdown(fd_, SHUT_WR);
  uint64_t bytes = memory_->saves().written_bytes;
  Clock::time_point seen = Clock::now();
  while (!has_ended()) {
    std::this_thread::sleep_for(milliseconds(1));
    if (const uint64_t now = memory_->saves().written_bytes; now != bytes) {
      bytes = now;
      seen = Clock::now();
    }
    if (Clock::now() - seen > patience || is_hurried()) return false;
  }
  return true;
}

}  // namespace trainctl
