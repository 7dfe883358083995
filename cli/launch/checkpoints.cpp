// See the header.
#include "cli/launch/checkpoints.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/plan/served.h"
#include "engine/spec/parse.h"
#include "engine/train/checkpoint/restore.h"
#include "engine/train/checkpoint/verify_checkpoint.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

/// How long the launcher waits for a disk that writes nothing.
constexpr std::chrono::seconds kPatience{60};
/// Without a byte written, until the user is told.
constexpr std::chrono::seconds kQuiet{10};
/// That are killed while they write one save.
constexpr int kMostWriters = 3;
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

/// For the number of a run, where no folder has that name; else "".
std::string folder_of_run(const JobSpec& spec, const std::string& text) {
  const bool is_number = text.size() < 9 && text.find_first_not_of("0123456789") == std::string::npos;
  if (!is_number || fs::exists(text)) return "";
  const RunDirectory run(spec.launch.log_dir, std::stoi(text));
  return fs::is_directory(run.path()) ? run.path() : "";
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
    if (const std::string folder = folder_of_run(spec, options.from); !folder.empty())
      return find_resume_point(spec, {.from = folder}, notices);
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
                 (folders.empty()       ? spec.launch.log_dir
                  : folders.size() == 1 ? folders[0]
                                        : spec.launch.log_dir) +
                 (notices.empty() ? "" : ":\n  " + join(notices, "\n  ")) +
                 "\nrun it without --resume to start anew, or name one with --resume-from");
}

Checkpoints::Checkpoints(const PlannedJob& job, const ResumeOptions& options, CheckpointUse use)
    : job_(job), options_(options), use_(use) {
  if (use == CheckpointUse::train && !options.resume && options.from.empty()) return;
  point_ = find_resume_point(job.spec, options, notices_);
  if (use == CheckpointUse::evaluate) {
    require_same_weights(job, point_->manifest, point_->path);
    return;
  }
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
    const std::string path = folder(directory);
    CheckpointDirectory checkpoints(path, commit_for(path));
    const int number = checkpoints.claim_attempt();
    if (attempt > 0) find_newest(checkpoints);
    close_images();
    const int tables = job_.tables.empty() ? 0 : job_.plan.servers;
    const int sets = job_.spec.launch.has_hosts() ? SaveBoard::kSets : 1;
    for (int image = 0; image < sets * (job_.spec.processes() + tables); ++image) {
      const int fd = memfd_create("trainctl-state", 0);
      if (fd < 0) throw EnvError(std::string("cannot make memory for checkpoints: ") + std::strerror(errno));
      images_.push_back(fd);
    }
    if (point_) memory->saves().begin_at(position_after(job_, point_->manifest, point_->path).step);
    start_writer_ = [this, checkpoints, number, run = directory.run(), memory] {
      return std::make_unique<CheckpointWriter>(job_, checkpoints, number, run, memory, images_);
    };
    memory_ = memory;
    writer_ = start_writer_();
  }
  if (point_ && use_ == CheckpointUse::evaluate)
    notices_.push_back(
        fmt::format("evaluating the weights after step {}, from {}", point_->manifest.step, point_->path));
  else if (point_)
    notices_.push_back(fmt::format("going on after step {} (epoch {}), from {}", point_->manifest.step,
                                   point_->manifest.epoch, point_->path));
}

std::string Checkpoints::folder(const RunDirectory& directory) const {
  const std::string& dir = job_.spec.train.checkpoint->dir;
  return dir.empty() ? directory.file(kFolder) : dir;
}

void Checkpoints::write(int64_t step, const SaveBoard::Position& position, const Images& images,
                        const RunDirectory& directory) {
  const std::string path = folder(directory);
  CheckpointDirectory checkpoints(path, commit_for(path));
  std::atomic<uint64_t> progress = 0;
  write_checkpoint(checkpoints, job_,
                   {.version = TRAINCTL_VERSION,
                    .run = directory.run(),
                    .attempt = checkpoints.claim_attempt(),
                    .step = step,
                    .position = position,
                    .job = to_yaml(without_env(job_.spec))},
                   images, progress);
}

int64_t Checkpoints::first_step() const {
  return point_ && use_ == CheckpointUse::train ? position_after(job_, point_->manifest, point_->path).step : 0;
}

/// A restart goes on from what this run has saved, if it has.
void Checkpoints::find_newest(const CheckpointDirectory& directory) {
  if (auto newest = newest_whole(directory, notices_); newest && newest->manifest.name == job_.spec.name)
    point_ = std::move(newest);
}

void Checkpoints::add_to(ProcessCommand& command, int rank) const {
  const auto add_image = [&](const char* option, int image) {
    const int fd = images_[static_cast<size_t>(image)];
    command.argv.insert(command.argv.end(), {option, std::to_string(fd)});
    command.inherited_fds.push_back(fd);
  };
  if (!images_.empty()) {
    add_image("--image-fd", rank);
    add_attempt_to(command);
    const int server = rank - num_workers(job_.plan);
    if (!job_.tables.empty() && server >= 0) add_image("--tables-fd", job_.spec.processes() + server);
  }
  if (point_) command.argv.insert(command.argv.end(), {"--resume-from", fs::absolute(point_->path).string()});
}

void Checkpoints::add_attempt_to(ProcessCommand& command) const {
  if (are_saved()) command.argv.insert(command.argv.end(), {"--failures", std::to_string(attempt_)});
}

std::vector<std::string> Checkpoints::news() {
  std::vector<std::string> lines = std::exchange(notices_, {});
  if (!writer_) return lines;
  revive_writer();
  watch_disk();
  for (std::string& line : writer_->news()) lines.push_back(std::move(line));
  lines.insert(lines.end(), std::make_move_iterator(notices_.begin()), std::make_move_iterator(notices_.end()));
  notices_.clear();
  return lines;
}

/// The ranks' copies are still there: another process writes the save that was under way. Returns whether it was
/// needed.
bool Checkpoints::revive_writer() {
  if (!writer_->was_killed()) return false;
  for (std::string& line : writer_->news()) notices_.push_back(std::move(line));
  const int64_t step = memory_->saves().saving();
  killed_writers_ = step >= 0 && step == killed_at_ ? killed_writers_ + 1 : 1;
  killed_at_ = step;
  if (step >= 0 && killed_writers_ == kMostWriters)
    give_up_save();
  else
    notices_.emplace_back("the process that writes checkpoints was killed; another goes on");
  try {
    writer_ = start_writer_();
  } catch (const EnvError& error) {
    notices_.push_back(std::string("no more checkpoints: ") + error.what());
  }
  return true;
}

/// Whatever kills each process that writes it must not hold up the run.
void Checkpoints::give_up_save() {
  notices_.push_back(fmt::format("checkpoint of step {} given up: {} processes that wrote it were killed", killed_at_,
                                 killed_writers_));
  memory_->saves().finished(false);
  killed_at_ = -1;
}

/// Says once a save that the disk does not answer.
void Checkpoints::watch_disk() {
  const int64_t step = memory_->saves().saving();
  const uint64_t bytes = memory_->saves().written_bytes;
  const bool is_whole = is_copied(*memory_);
  const auto now = std::chrono::steady_clock::now();
  if (!is_whole || step != watch_.step) watch_ = {.step = is_whole ? step : -1, .bytes = bytes, .since = now};
  if (bytes != watch_.bytes) {
    watch_.bytes = bytes;
    watch_.since = now;
  }
  if (watch_.step < 0 || watch_.told || now - watch_.since < kQuiet) return;
  watch_.told = true;
  notices_.push_back(fmt::format("checkpoint of step {}: nothing could be written for {} s; it waits for the disk",
                                 step, kQuiet.count()));
}

std::vector<std::string> Checkpoints::finish(const std::function<bool()>& is_hurried) {
  if (!writer_) return {};
  revive_writer();
  bool written = true, hurried = false;
  const auto asked = [&] { return hurried = hurried || (is_hurried && is_hurried()); };
  do written = writer_->finish(kPatience, asked);
  while (!hurried && revive_writer());
  if (hurried && !written) {
    std::vector<std::string> lines = writer_->news();
    lines.emplace_back("the last checkpoint was not waited for: it may not be there");
    writer_->kill();
    writer_.reset();
    return lines;
  }
  std::vector<std::string> lines = news();
  if (!written)
    lines.push_back(
        fmt::format("the disk has not answered for {} s: the last checkpoint may not be there", kPatience.count()));
  writer_.reset();
  return lines;
}

}  // namespace trainctl
