// Writes to a run's directory of checkpoints: attempts and commits. checkpoint_list.cpp reads it.
#include "engine/train/checkpoint/checkpoint_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/train/checkpoint/delete_checkpoint.h"
#include "engine/train/files/digest.h"
#include "engine/train/files/input_file.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

constexpr const char* kJobName = "job.yaml";

void make_directory(const std::string& path, Disk& disk) {
  if (disk.mkdir(path) != 0 && errno != EEXIST)
    throw EnvError(fmt::format("{}: the directory cannot be created: {}", path, std::strerror(errno)));
}

/// Creates the directory and any missing parent directories.
void make_directories(const std::string& path, Disk& disk) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return;
  const std::string above = fs::path(path).parent_path();
  if (!above.empty()) make_directories(above, disk);
  make_directory(path, disk);
  sync_directory(above.empty() ? "." : above, disk);
}

/// The largest number among the names in .attempts. A listing that lags gives a smaller one.
int largest_attempt(const std::string& attempts) {
  int largest = 0;
  std::error_code error;
  fs::directory_iterator entries(attempts, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename();
    int number = 0;
    const auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (failed == std::errc{} && end == name.data() + name.size()) largest = std::max(largest, number);
  }
  return largest;
}

bool is_there(const std::string& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

/// Locks the file of an attempt for as long as the launcher saves. On file systems without locks every request is
/// granted, so a run can start there too. The descriptor is opened for reading only, so that a disk can be remounted
/// read-only while it is open; on NFS such a descriptor can only have a shared lock.
std::shared_ptr<AttemptLock> lock_attempt(const std::string& path) {
  auto lock = std::make_shared<AttemptLock>(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (lock->fd() >= 0) flock(lock->fd(), LOCK_SH);
  return lock;
}

/// Returns whether another process, or another lock of this process, holds the lock of the file.
bool is_locked(const std::string& path) {
  int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool is_held = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(fd);
  return is_held;
}

bool holds_text(const std::string& path, const std::string& text) {
  try {
    return read_whole_file(path) == text;
  } catch (const EnvError&) {
    return false;
  }
}

/// Returns whether there is a checkpoint.json that was written to its end, or, to be safe, one that cannot be read now.
bool is_published(const std::string& folder) {
  const std::string path = folder + "/" + std::string(kManifestName);
  if (!is_there(path)) return false;
  std::string text;
  try {
    text = read_whole_file(path);
  } catch (const EnvError&) {
    return true;
  }
  try {
    parse_manifest(text, path);
    return true;
  } catch (const EnvError&) {
    return false;
  }
}

}  // namespace

CommitBy commit_for(const std::string& path) {
  constexpr auto kFuse = 0x65735546;
  fs::path there = fs::absolute(path);
  struct statfs system {};
  while (statfs(there.c_str(), &system) != 0 && there != there.parent_path()) there = there.parent_path();
  return system.f_type == kFuse ? CommitBy::file : CommitBy::rename;
}

CheckpointDirectory::CheckpointDirectory(std::string path, CommitBy commit_by, Disk& disk)
    : path_(std::move(path)), commit_by_(commit_by), disk_(&disk) {}

AttemptLock::~AttemptLock() {
  if (fd_ >= 0) ::close(fd_);
}

int CheckpointDirectory::claim_attempt(std::optional<CheckpointOwner> owner, const std::string& who, bool is_newcomer) {
  owner_ = std::move(owner);
  const std::string attempts = path_ + "/" + std::string(kAttemptsName);
  make_directories(attempts, *disk_);
  // The lock makes looking for an occupant and becoming one a single action, which no other newcomer can interrupt.
  const AttemptLock turn(is_newcomer ? open(attempts.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1);
  if (is_newcomer) {
    flock(turn.fd(), LOCK_EX);
    if (const std::string why = occupant(); !why.empty()) throw Occupied(path_ + ": " + why);
  }
  int attempt = largest_attempt(attempts) + 1;
  for (;; ++attempt) {  // O_EXCL decides between launchers, and does not depend on the listing
    const std::string file = attempts + "/" + std::to_string(attempt);
    const int fd = disk_->open(file, O_WRONLY | O_CREAT | O_EXCL);
    if (fd >= 0) {
      const std::string line = who.empty() ? "" : who + "\n";
      if (write(fd, line.data(), line.size()) < 0) errno = 0;  // a full disk loses the line, which only explains
      disk_->close(fd);
      lock_ = lock_attempt(file);
      break;
    }
    if (errno != EEXIST) throw EnvError(fmt::format("{}: cannot be created: {}", file, std::strerror(errno)));
  }
  sync_directory(attempts, *disk_);
  delete_unpublished(attempt);
  disk_->unlink(path_ + "/" + std::string(kNewestName) + ".part");  // left by a crash
  return attempt;
}

std::string CheckpointDirectory::occupant() const {
  for (const CheckpointName& name : checkpoint_names(path_)) {
    if (name.hidden) continue;
    const CheckpointEntry entry = describe(name);
    if (entry.unfinished) continue;
    if (!entry.complete()) return fmt::format("it contains {}, which is damaged", entry.name);
    return fmt::format("it contains step {} of the job '{}', run {}", entry.step, entry.manifest.name,
                       entry.manifest.run);
  }
  const std::string attempts = path_ + "/" + std::string(kAttemptsName);
  const std::string newest = attempts + "/" + std::to_string(largest_attempt(attempts));
  if (!is_locked(newest)) return "";
  const std::string who = read_whole_file(newest);
  return (who.empty() ? "another run" : who.substr(0, who.find('\n'))) + " is saving there now";
}

void CheckpointDirectory::delete_unpublished(int before_attempt) {
  for (const CheckpointName& name : checkpoint_names(path_)) {
    if (name.attempt == 0 || name.attempt >= before_attempt) continue;
    const std::string folder = path_ + "/" + name.text();
    if (name.hidden || !is_published(folder)) delete_checkpoint(folder, *disk_);
  }
}

bool CheckpointDirectory::is_latest(int attempt) const {
  const std::string next = fmt::format("{}/{}/{}", path_, kAttemptsName, attempt + 1);
  const int fd = disk_->open(next, O_RDONLY);  // unlike stat, open asks the server of an NFS mount
  if (fd >= 0) disk_->close(fd);
  if (fd < 0 && errno != ENOENT && errno != ENOTDIR)
    throw EnvError(fmt::format("{}: cannot be checked: {}", next, std::strerror(errno)));
  return fd < 0;
}

void CheckpointDirectory::require_latest(int attempt) const {
  if (!is_latest(attempt))
    throw LaterAttempt(fmt::format("{}: attempt {} can no longer write checkpoints, because attempt {} has started",
                                   path_, attempt, attempt + 1));
}

std::string CheckpointDirectory::folder_of(int64_t step, int attempt) const {
  return path_ + "/" + CheckpointName{step, attempt, commit_by_ == CommitBy::rename}.text();
}

std::string CheckpointDirectory::begin(int64_t step, int attempt) {
  require_latest(attempt);
  for (const CheckpointName& name : checkpoint_names(path_)) {
    if (name.step != step || name.hidden) continue;
    const CheckpointEntry there = describe(name);
    if (!there.complete() || there.attempt != attempt) continue;
    sync_directory(there.path, *disk_);  // A checkpoint counts only if its names are on the disk. commit() may have
                                         // failed to sync them.
    sync_directory(path_, *disk_);
    throw AlreadyPublished(fmt::format("{}: attempt {} has already published this step", there.path, attempt));
  }
  make_directories(path_, *disk_);
  const std::string folder = folder_of(step, attempt);
  if (is_there(folder)) delete_checkpoint(folder, *disk_);
  make_directory(folder, *disk_);
  return folder;
}

std::string CheckpointDirectory::commit(Manifest manifest, std::string_view job) {
  const std::string folder = folder_of(manifest.step, manifest.attempt);
  write_synced(folder + "/" + kJobName, job, *disk_);
  manifest.files.push_back({kJobName, static_cast<int64_t>(job.size()), digest_of(job)});
  if (const std::string defect = files_defect(manifest, folder); !defect.empty())
    throw EnvError(folder + "/" + defect + "; the checkpoint is not published");
  return publish(manifest, to_json(manifest));
}

std::string CheckpointDirectory::publish(const Manifest& manifest, const std::string& text) {
  const std::string folder = folder_of(manifest.step, manifest.attempt);
  const std::string commit_file = folder + "/" + std::string(kManifestName);
  if (commit_by_ == CommitBy::file) {
    sync_directory(folder, *disk_);
    sync_directory(path_, *disk_);
    require_latest(manifest.attempt);
    note_newest(fs::path(folder).filename());
    write_synced(commit_file, text, *disk_);
    sync_directory(folder, *disk_);
    return folder;
  }
  write_synced(commit_file, text, *disk_);
  sync_directory(folder, *disk_);
  require_latest(manifest.attempt);
  for (const int attempt : {0, manifest.attempt}) {
    const std::string name = CheckpointName{manifest.step, attempt, false}.text(), target = path_ + "/" + name;
    if (is_there(target)) continue;  // of an older attempt, or damaged
    note_newest(name);
    // An NFS client that repeats a request whose answer was lost reports a failure of a rename that was done.
    if (disk_->rename(folder, target) != 0) {
      const int error = errno;
      if (!holds_text(target + "/" + std::string(kManifestName), text))
        throw EnvError(fmt::format("{}: cannot be renamed to {}: {}", folder, name, std::strerror(error)));
    }
    sync_directory(path_, *disk_);
    return target;
  }
  throw EnvError(fmt::format("{}: cannot be published, because {} exists", folder,
                             CheckpointName{manifest.step, manifest.attempt, false}.text()));
}

void CheckpointDirectory::note_newest(const std::string& name) {
  const std::string path = path_ + "/" + std::string(kNewestName);
  std::string before;
  if (is_there(path)) before = read_whole_file(path);
  const std::string text = name + "\n" + before.substr(0, before.find('\n')) + "\n";
  if (commit_by_ == CommitBy::file) return write_synced(path, text, *disk_);
  replace_synced(path, text, *disk_);
}

void CheckpointDirectory::abandon(int64_t step, int attempt) {
  const std::string folder = folder_of(step, attempt);
  try {
    if (commit_by_ == CommitBy::rename || !is_published(folder)) delete_checkpoint(folder, *disk_);
  } catch (const EnvError&) {
    // The next attempt deletes it.
  }
}

}  // namespace trainctl
