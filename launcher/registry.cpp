// Registry entries are created under a temporary name and locked before they become visible.
#include "launcher/registry.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/base/error.h"
#include "engine/base/machine_limits.h"

namespace trainctl {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kEntry = ".run";

/// Possible folders of entries. A shell may set XDG_RUNTIME_DIR and cron may not; each should see the other's runs.
std::vector<std::string> candidate_folders() {
  std::vector<std::string> folders;
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime != nullptr && *runtime == '/')
    folders.push_back(std::string(runtime) + "/trainctl");
  std::error_code error;
  const fs::path temporary = fs::temp_directory_path(error);
  if (!error) folders.push_back(temporary / ("trainctl-" + std::to_string(getuid())));
  return folders;
}

/// Returns whether this is a folder, not a link, that this user owns and no other user can enter.
bool is_private(const std::string& folder) {
  struct stat info {};
  return lstat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == getuid() &&
         (info.st_mode & 077) == 0;
}

std::string private_folder() {
  std::string tried;
  for (const std::string& folder : candidate_folders()) {
    mkdir(folder.c_str(), 0700);
    if (is_private(folder)) return folder;
    tried += (tried.empty() ? "" : ", ") + folder;
  }
  throw EnvError("no folder to register the run: " + tried +
                 " cannot be created, or is accessible to other users (expected mode 0700)");
}

std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Replaces a file atomically.
bool replace_file(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".new";
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return false;
  const bool written = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(fd);
  return written && rename(temporary.c_str(), path.c_str()) == 0;
}

std::string describe(const RegisteredRun& run) {
  return nlohmann::ordered_json{{"run", run.run},        {"name", run.name},   {"log_dir", run.log_dir},
                                {"job", run.job},        {"ranks", run.ranks}, {"launcher", run.launcher},
                                {"started", run.started}}
             .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
         "\n";
}

std::optional<RegisteredRun> parse(const std::string& text, const std::string& id) {
  try {
    const auto json = nlohmann::json::parse(text);
    RegisteredRun run;
    json.at("run").get_to(run.run);
    json.at("name").get_to(run.name);
    json.at("log_dir").get_to(run.log_dir);
    json.at("job").get_to(run.job);
    json.at("ranks").get_to(run.ranks);
    json.at("launcher").get_to(run.launcher);
    json.at("started").get_to(run.started);
    run.id = id;
    return run;
  } catch (const nlohmann::json::exception&) {
    return {};
  }
}

void remove_entry(const std::string& stem) {
  for (const char* end : {".status", ".status.new", ".run"}) unlink((stem + end).c_str());
}

/// Returns whether a launcher holds the entry's lock. If not, deletes the entry while holding the lock.
bool is_held(const std::string& stem) {
  const int fd = open((stem + std::string(kEntry)).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  const bool is_locked = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (!is_locked) remove_entry(stem);
  close(fd);
  return is_locked;
}

}  // namespace

Registration::Registration(RegisteredRun run) {
  std::random_device random;
  stem_ = private_folder() + "/" + std::to_string(run.launcher) + "-" + std::to_string(random());
  const std::string temporary = stem_ + ".locking";
  lock_ = open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  const std::string text = describe(run);
  const bool noted = lock_ >= 0 && flock(lock_, LOCK_EX | LOCK_NB) == 0 &&
                     write(lock_, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                     rename(temporary.c_str(), (stem_ + std::string(kEntry)).c_str()) == 0;
  if (noted) return;
  const int error = errno;
  unlink(temporary.c_str());
  if (lock_ >= 0) close(lock_);
  throw EnvError("cannot register the run in " + stem_ + ": " + describe_errno(error));
}

Registration::~Registration() {
  remove_entry(stem_);
  close(lock_);
}

void Registration::publish(const LiveStatus& status) const { replace_file(stem_ + ".status", to_json(status)); }

std::vector<RegisteredRun> running_runs() {
  std::vector<RegisteredRun> runs;
  for (const std::string& folder : candidate_folders()) {
    if (!is_private(folder)) continue;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
      if (entry.path().extension() != kEntry) continue;
      const std::string stem = entry.path().parent_path() / entry.path().stem();
      if (!is_held(stem)) continue;
      if (auto run = parse(slurp(entry.path()), stem)) runs.push_back(std::move(*run));
    }
  }
  std::sort(runs.begin(), runs.end(), [](const auto& a, const auto& b) { return a.started < b.started; });
  return runs;
}

bool still_runs(const RegisteredRun& run) { return is_held(run.id); }

std::optional<LiveStatus> live_status(const RegisteredRun& run) { return parse_live_status(slurp(run.id + ".status")); }

}  // namespace trainctl
