// A run's saves as the launcher sees them: the checkpoint to resume from, the memory that the ranks copy into, and the
// process that writes.
#include "cli/run/saves/checkpoints.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "cli/run/saves/certificates.h"
#include "cli/run/saves/resumed_optimizer.h"
#include "cli/run/saves/start_weights.h"
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/plan/served.h"
#include "engine/spec/parse.h"
#include "engine/train/checkpoint/resume_checks.h"
#include "engine/train/checkpoint/resume_position.h"
#include "engine/train/checkpoint/verify_checkpoint.h"
#include "engine/train/files/digest.h"
#include "launcher/host_facts.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

/// The time that the launcher waits for a disk that does not respond.
constexpr std::chrono::seconds kLastSavePatience{60};
/// Time without progress after which the user is notified.
constexpr std::chrono::seconds kQuiet{10};
/// Number of writers killed during one save after which it is abandoned.
constexpr int kMostWriters = 3;
constexpr const char* kFolder = "checkpoints";
constexpr const char* kDirField = "train.checkpoint.dir";

/// The newest complete and undamaged checkpoint of a folder. `refusal` returns why one is not wanted; "" if it is.
std::optional<ResumePoint> newest_whole(
    const CheckpointDirectory& directory, std::vector<std::string>& notices,
    const std::function<std::string(const Manifest&)>& refusal = [](const Manifest&) { return std::string(); }) {
  for (const CheckpointEntry& entry : directory.list()) {
    std::string problem = entry.problem;
    if (entry.complete()) problem = refusal(entry.manifest);
    if (problem.empty()) {
      const Verification found = verify_checkpoint(entry.path);
      if (found.problems.empty()) return ResumePoint{entry.path, entry.manifest};
      problem = found.problems.front();
    }
    notices.push_back(fmt::format("{} was skipped: {}", entry.path, problem));
  }
  return std::nullopt;
}

ResumePoint point_at(const std::string& path) {
  const Verification found = verify_checkpoint(path);
  if (!found.problems.empty()) throw EnvError("cannot resume from " + path + ": " + found.problems.front());
  return {path, read_manifest(path)};
}

/// The stored job of the run that wrote a checkpoint: beside the folder of its checkpoints, or in `spec`'s log folder.
std::string job_of(const ResumePoint& point, const JobSpec& spec) {
  const std::string beside = (fs::absolute(point.path).lexically_normal() / "../../job.yaml").lexically_normal();
  return fs::exists(beside) ? beside : RunDirectory(spec.launch.log_dir, point.manifest.run).file("job.yaml");
}

/// The run that a number, `latest` or the path of its folder names. Throws EnvError if `latest` names none.
std::optional<RunDirectory> find_named_run(const JobSpec& spec, std::string text) {
  std::string log_dir = spec.launch.log_dir;
  if (text == "latest" && !fs::exists(text)) {
    const std::vector<int> runs = list_runs(log_dir);
    if (runs.empty()) throw EnvError("no runs in " + log_dir + "; set launch.log_dir to select another folder");
    return RunDirectory(log_dir, runs.back());
  }
  const bool is_path = fs::exists(text);
  if (is_path) {
    const fs::path path = fs::absolute(text).lexically_normal();
    const fs::path folder = path.has_filename() ? path : path.parent_path();
    log_dir = fs::path(text).has_parent_path() ? fs::path(text).parent_path().string() : ".";
    if (!path.has_filename()) log_dir = folder.parent_path();
    text = folder.filename();
  }
  if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  const RunDirectory run(log_dir, std::stoi(text));
  const bool is_run = is_path ? fs::exists(run.file("job.yaml")) : fs::is_directory(run.path());
  return is_run ? std::optional(run) : std::nullopt;
}

/// Folders that may contain checkpoints of the job, newest first.
std::vector<std::string> folders_of(const JobSpec& spec) {
  if (spec.train.checkpoint && !spec.train.checkpoint->dir.empty()) return {spec.train.checkpoint->dir};
  std::vector<std::string> folders;
  for (const int run : list_runs(spec.launch.log_dir))
    folders.push_back(RunDirectory(spec.launch.log_dir, run).file(kFolder));
  std::reverse(folders.begin(), folders.end());
  return folders;
}

/// Throws because the folder contains checkpoints that the run does not continue.
[[noreturn]] void refuse_folder(const JobSpec& spec, const std::string& why) {
  throw SpecError(spec.position(kDirField), kDirField, "cannot save in '" + spec.train.saving().dir + "': " + why,
                  "use --resume to continue the checkpoints of the job '" + spec.name +
                      "' there, or choose another folder; without this field each run has its own");
}

}  // namespace

std::string checkpoint_folder(const RunDirectory& run) {
  const std::string inside = run.file(kFolder), job = run.file("job.yaml");
  if (fs::is_directory(inside) || !fs::exists(job)) return inside;
  const std::string dir = load_run_job(job).train.saving().dir;
  return dir.empty() ? inside : dir;
}

ResumePoint find_resume_point(const JobSpec& spec, const ResumeOptions& options, std::vector<std::string>& notices) {
  if (!options.from.empty()) {
    if (fs::exists(options.from + "/" + std::string(kManifestName))) return point_at(options.from);
    const std::string inside = options.from + "/" + kFolder;
    std::string folder = fs::is_directory(inside) ? inside : options.from;
    if (const auto run = find_named_run(spec, options.from)) folder = checkpoint_folder(*run);
    if (auto point = newest_whole(CheckpointDirectory(folder), notices)) return *point;
    throw EnvError("no complete checkpoint in " + folder + (notices.empty() ? "" : ":\n  " + join(notices, "\n  ")));
  }
  const auto refusal = [&](const Manifest& manifest) -> std::string {
    if (manifest.name != spec.name) return "it belongs to the job '" + manifest.name + "'";
    return manifest.weights_only ? "it contains only final weights; use --resume-from and --partial to start from them"
                                 : "";
  };
  const std::vector<std::string> folders = folders_of(spec);
  for (const std::string& folder : folders)
    if (auto point = newest_whole(CheckpointDirectory(folder), notices, refusal)) return *point;
  throw EnvError("no complete checkpoint of the job '" + spec.name + "' in " +
                 (folders.empty()       ? spec.launch.log_dir
                  : folders.size() == 1 ? folders[0]
                                        : spec.launch.log_dir) +
                 (notices.empty() ? "" : ":\n  " + join(notices, "\n  ")) +
                 "\nrun without --resume to start from the beginning, or select a checkpoint with --resume-from");
}

Checkpoints::Checkpoints(const PlannedJob& job, const ResumeOptions& options, CheckpointUse use)
    : job_(job), options_(options), use_(use) {
  const bool resumes = options.resume || !options.from.empty();
  if (use == CheckpointUse::train && are_saved()) base_ = base_of(job);
  if (resumes) point_ = find_resume_point(job.spec, options, notices_);
  if (const std::string dir = job.spec.train.saving().dir;
      are_saved() && !dir.empty() && !options.continues_run && !continues(dir)) {
    if (const std::string why = CheckpointDirectory(dir).occupant(); !why.empty()) refuse_folder(job.spec, why);
  }
  if (!resumes) return;
  if (const std::optional<StoredBase>& base = point_->manifest.base; base && job.spec.weights)
    require_base(WeightFiles(job.spec.weights->from), *base, point_->path);
  if (use != CheckpointUse::train) {
    require_same_weights(job, point_->manifest, point_->path);
    if (use == CheckpointUse::evaluate) require_untrained_samples(job, point_->manifest, point_->path);
    return;
  }
  require_same_state(job, point_->manifest, point_->path, options.partial);
  const std::string stored_job = job_of(*point_, job.spec);
  const int64_t next_step = position_after(job, point_->manifest, point_->path).step;
  for (std::string notice : {optimizer_changes(job.spec, stored_job), schedule_change(job, stored_job, next_step)})
    if (!notice.empty()) notices_.push_back(std::move(notice));
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
    const int number = claim(checkpoints, attempt, directory);
    if (attempt > 0) find_newest(checkpoints);
    if (std::string notice = store_certificate(job_.spec, path); !notice.empty()) notices_.push_back(std::move(notice));
    close_images();
    const int tables = job_.tables.empty() ? 0 : job_.plan.servers;
    for (int image = 0; image < image_sets(job_) * (job_.spec.processes() + tables); ++image) {
      const int fd = memfd_create("trainctl-state", 0);
      if (fd < 0) throw EnvError(std::string("cannot allocate memory for checkpoints: ") + std::strerror(errno));
      images_.push_back(fd);
    }
    if (point_) memory->saves().begin_at(position_after(job_, point_->manifest, point_->path).step);
    start_writer_ = [this, checkpoints, number, run = directory.run(), memory] {
      return std::make_unique<CheckpointWriter>(job_, base_, checkpoints, number, run, memory, images_);
    };
    memory_ = memory;
    writer_ = start_writer_();
  }
  if (point_ && use_ == CheckpointUse::evaluate)
    notices_.push_back(
        fmt::format("evaluating the weights after step {} from {}", point_->manifest.step, point_->path));
  else if (point_ && use_ == CheckpointUse::train)
    notices_.push_back(fmt::format("resuming after step {} (epoch {}) from {}", point_->manifest.step,
                                   point_->manifest.epoch, point_->path));
}

std::string Checkpoints::folder(const RunDirectory& directory) const {
  const std::string dir = job_.spec.train.saving().dir;
  return dir.empty() ? directory.file(kFolder) : dir;
}

/// Returns whether the run resumes from a checkpoint of this folder as the same job. A job with another name, which
/// only takes the weights, does not own the checkpoint; otherwise it would delete it later.
bool Checkpoints::continues(const std::string& folder) const {
  if (!point_ || point_->manifest.name != job_.spec.name) return false;
  std::error_code not_there;
  return fs::equivalent(point_->path + "/..", folder, not_there);
}

/// The owner depends only on the run's folder, so all attempts of a run have the same one.
CheckpointOwner Checkpoints::owner(const RunDirectory& directory) const {
  if (continues(folder(directory))) return {point_->manifest.lineage, job_.spec.name};
  const std::string run = fmt::format("{} {} {}", host_facts().name,
                                      fs::absolute(directory.path()).lexically_normal().string(), start_ns(directory));
  return {digest_of(run), job_.spec.name};
}

int Checkpoints::claim(CheckpointDirectory& checkpoints, int attempt, const RunDirectory& directory) const {
  const bool is_newcomer = attempt == 0 && !job_.spec.train.saving().dir.empty() && !continues(checkpoints.path());
  const std::string who = fmt::format("run {} of the job '{}', in {} on {}", directory.run(), job_.spec.name,
                                      fs::absolute(directory.path()).lexically_normal().string(), host_facts().name);
  try {
    return checkpoints.claim_attempt(owner(directory), who, is_newcomer);
  } catch (const Occupied& error) {
    refuse_folder(job_.spec, error.what());
  }
}

void Checkpoints::write(int64_t step, const SaveBoard::Position& position, const Images& images,
                        const RunDirectory& directory) {
  const std::string path = folder(directory);
  CheckpointDirectory checkpoints(path, commit_for(path));
  std::atomic<uint64_t> progress = 0;
  const int attempt = claim(checkpoints, attempt_ + 1, directory);
  write_checkpoint(checkpoints, job_,
                   {.version = TRAINCTL_VERSION,
                    .run = directory.run(),
                    .attempt = attempt,
                    .step = step,
                    .lineage = checkpoints.owner()->lineage,
                    .base = base_,
                    .position = position,
                    .job = to_yaml(without_env(job_.spec))},
                   images, progress);
}

int64_t Checkpoints::first_step() const {
  return point_ && use_ == CheckpointUse::train ? position_after(job_, point_->manifest, point_->path).step : 0;
}

/// A restart resumes from what this run has saved, if anything.
void Checkpoints::find_newest(const CheckpointDirectory& directory) {
  const auto refusal = [&](const Manifest& manifest) {
    return directory.owner()->owns(manifest) ? std::string() : "it belongs to another run";
  };
  if (auto newest = newest_whole(directory, notices_, refusal)) point_ = std::move(newest);
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
  for (std::string& line : writers_news()) lines.push_back(std::move(line));
  lines.insert(lines.end(), std::make_move_iterator(notices_.begin()), std::make_move_iterator(notices_.end()));
  notices_.clear();
  return lines;
}

/// Keeps the last line that reports why something is not saved.
std::vector<std::string> Checkpoints::writers_news() {
  std::vector<std::string> lines = writer_->news();
  for (std::string& line : lines)
    if (line.starts_with(kTroubleMark)) {
      trouble_ = line.erase(0, 1);
      if (trouble_.ends_with(kTryingAgain)) trouble_.resize(trouble_.size() - kTryingAgain.size());
    }
  return lines;
}

/// Replaces a killed writer, which writes the save in progress from the ranks' copies. Returns whether that was
/// necessary.
bool Checkpoints::revive_writer() {
  if (!writer_->was_killed()) return false;
  for (std::string& line : writers_news()) notices_.push_back(std::move(line));
  const int64_t step = memory_->saves().saving();
  killed_writers_ = step >= 0 && step == killed_at_ ? killed_writers_ + 1 : 1;
  killed_at_ = step;
  if (step >= 0 && killed_writers_ == kMostWriters)
    give_up_save();
  else
    notices_.emplace_back("the process that writes checkpoints was killed; another one has taken over");
  try {
    writer_ = start_writer_();
  } catch (const EnvError& error) {
    trouble_ = std::string("checkpoints can no longer be written: ") + error.what();
    notices_.push_back(trouble_);
  }
  return true;
}

/// Abandons a save whose writers are all killed, so that the run is not held up.
void Checkpoints::give_up_save() {
  trouble_ = fmt::format("checkpoint of step {} abandoned: {} processes that wrote it were killed", killed_at_,
                         killed_writers_);
  notices_.push_back(trouble_);
  memory_->saves().finished(false);
  killed_at_ = -1;
}

/// Reports once per save that the disk does not respond.
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
  if (watch_.step < 0 || watch_.is_reported || now - watch_.since < kQuiet) return;
  watch_.is_reported = true;
  notices_.push_back(
      fmt::format("checkpoint of step {}: no progress for {} s; waiting for the disk", step, kQuiet.count()));
}

std::vector<std::string> Checkpoints::finish(const std::function<bool()>& is_hurried) {
  if (!writer_) return {};
  revive_writer();
  bool written = true, hurried = false;
  const auto asked = [&] { return hurried = hurried || (is_hurried && is_hurried()); };
  do written = writer_->finish(kLastSavePatience, asked);
  while (!hurried && revive_writer());
  if (hurried && !written) {
    std::vector<std::string> lines = writers_news();
    trouble_ = "a second signal ended the run before the last checkpoint was written";
    lines.emplace_back("the run did not wait for the last checkpoint, which may be missing");
    writer_->kill();
    writer_.reset();
    return lines;
  }
  std::vector<std::string> lines = news();
  if (!written) {
    trouble_ = fmt::format("the disk has not responded for {} s", kLastSavePatience.count());
    lines.push_back(trouble_ + "; the last checkpoint may be missing");
    writer_->kill();  // it must not publish later what the run has reported as not saved
  }
  writer_.reset();
  return lines;
}

}  // namespace trainctl
