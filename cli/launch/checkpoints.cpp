// See the header.
#include "cli/launch/checkpoints.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/train/checkpoint/restore.h"
#include "engine/train/checkpoint/verify_checkpoint.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

/// How long the launcher waits for a disk that writes nothing.
constexpr std::chrono::seconds kPatience{60};
constexpr const char* kFolder = "checkpoints";

/// The newest of a folder that is complete and whole.
std::optional<ResumePoint> newest_whole(const CheckpointDirectory& directory, std::vector<std::string>& notices) {
  for (const CheckpointEntry& entry : directory.list()) {
    std::string problem = entry.problem;
    if (entry.complete()) {
      const Verification found = verify_checkpoint(entry.path);
      if (found.problems.empty()) return ResumePoint{entry.path, entry.manifest};
      problem = found.problems.front();
    }
    notices.push_back(fmt::format("{} passed over: {}", entry.path, problem));
  }
  return std::nullopt;
}

ResumePoint point_at(const std::string& path) {
  const Verification found = verify_checkpoint(path);
  if (!found.problems.empty()) throw EnvError(path + " cannot be resumed from: " + found.problems.front());
  return {path, read_manifest(path)};
}

/// Folders that may hold checkpoints of the job, the newest first.
std::vector<std::string> folders_of(const JobSpec& spec) {
  if (spec.train.checkpoint && !spec.train.checkpoint->dir.empty()) return {spec.train.checkpoint->dir};
  std::vector<std::string> folders;
  for (const int run : list_runs(spec.launch.log_dir))
    folders.push_back(RunDirectory(spec.launch.log_dir, run).file(kFolder));
  std::reverse(folders.begin(), folders.end());
  return folders;
}

}  // namespace

ResumePoint find_resume_point(const JobSpec& spec, const ResumeOptions& options, std::vector<std::string>& notices) {
  if (!options.from.empty()) {
    if (fs::exists(options.from + "/" + std::string(kManifestName))) return point_at(options.from);
    const std::string inside = options.from + "/" + kFolder;
    const std::string folder = fs::is_directory(inside) ? inside : options.from;
    if (auto point = newest_whole(CheckpointDirectory(folder), notices)) return *point;
    throw EnvError("there is no complete checkpoint in " + options.from +
                   (notices.empty() ? "" : ":\n  " + join(notices, "\n  ")));
  }
  const std::vector<std::string> folders = folders_of(spec);
  for (const std::string& folder : folders) {
    auto point = newest_whole(CheckpointDirectory(folder), notices);
    if (point && point->manifest.name == spec.name) return *point;
  }
  throw EnvError("there is no complete checkpoint of the job '" + spec.name + "' in " +
                 (folders.empty() ? spec.launch.log_dir : folders.size() == 1 ? folders[0] : spec.launch.log_dir) +
                 (notices.empty() ? "" : ":\n  " + join(notices, "\n  ")) +
                 "\nrun it without --resume to start anew, or name one with --resume-from");
}

Checkpoints::Checkpoints(const PlannedJob& job, const ResumeOptions& options) : job_(job), options_(options) {
  if (!options.resume && options.from.empty()) return;
  point_ = find_resume_point(job.spec, options, notices_);
  require_same_state(job, point_->manifest, point_->path, options.partial);
  position_after(job, point_->manifest, point_->path);
}

Checkpoints::~Checkpoints() { close_images(); }

void Checkpoints::close_images() {
  for (const int fd : images_) close(fd);
  images_.clear();
}

void Checkpoints::prepare(int attempt, const RunDirectory& directory, const std::shared_ptr<SharedMemory>& memory) {
  attempt_ = attempt;
  const std::vector<std::string> said = finish();
  notices_.insert(notices_.end(), said.begin(), said.end());
  if (are_saved()) {
    const std::string& dir = job_.spec.train.checkpoint->dir;
    const std::string path = dir.empty() ? directory.file(kFolder) : dir;
    CheckpointDirectory checkpoints(path, commit_for(path));
    const int number = checkpoints.claim_attempt();
    if (attempt > 0) find_newest(checkpoints);
    close_images();
    for (int rank = 0; rank < job_.spec.launch.ranks; ++rank) {
      const int fd = memfd_create("trainctl-state", 0);
      if (fd < 0) throw EnvError(std::string("cannot make memory for checkpoints: ") + std::strerror(errno));
      images_.push_back(fd);
    }
    if (point_) memory->saves().begin_at(position_after(job_, point_->manifest, point_->path).step);
    writer_ = std::make_unique<CheckpointWriter>(job_, checkpoints, number, directory.run(), memory, images_);
  }
  if (point_)
    notices_.push_back(fmt::format("going on after step {} (epoch {}), from {}", point_->manifest.step,
                                   point_->manifest.epoch, point_->path));
}

/// A restart goes on from what this run has saved, if it has.
void Checkpoints::find_newest(const CheckpointDirectory& directory) {
  if (auto newest = newest_whole(directory, notices_); newest && newest->manifest.name == job_.spec.name)
    point_ = std::move(newest);
}

void Checkpoints::add_to(ProcessCommand& command, int rank) const {
  if (!images_.empty()) {
    const int fd = images_[static_cast<size_t>(rank)];
    command.argv.insert(command.argv.end(), {"--image-fd", std::to_string(fd), "--failures", std::to_string(attempt_)});
    command.inherited_fds.push_back(fd);
  }
  if (point_) command.argv.insert(command.argv.end(), {"--resume-from", fs::absolute(point_->path).string()});
}

std::vector<std::string> Checkpoints::news() {
  std::vector<std::string> lines = std::exchange(notices_, {});
  if (!writer_) return lines;
  for (std::string& line : writer_->news()) lines.push_back(std::move(line));
  return lines;
}

std::vector<std::string> Checkpoints::finish() {
  if (!writer_) return {};
  const bool written = writer_->finish(kPatience);
  std::vector<std::string> lines = news();
  if (!written)
    lines.push_back(fmt::format("the disk has not answered for {} s: the last checkpoint may not be there",
                                kPatience.count()));
  writer_.reset();
  return lines;
}

}  // namespace trainctl
