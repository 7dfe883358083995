// launch.copy: files and folders of the launcher's host that each host receives before its ranks start.
#include "launcher/hosts/copies.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/machine_limits.h"
#include "engine/base/put_all.h"
#include "engine/base/sha256.h"

namespace trainctl::hosts {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCopied = "copied";
constexpr mode_t kAnyExecute = S_IXUSR | S_IXGRP | S_IXOTH;

[[noreturn]] void fail(const std::string& what) { throw EnvError(what + ": " + describe_errno(errno)); }

/// Returns whether `path` is `folder`, or inside it.
bool is_in(const std::string& path, const std::string& folder) {
  return path == folder || (path.starts_with(folder) && (folder == "/" || path[folder.size()] == '/'));
}

Copy::File file_at(const std::string& path, std::string name) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) fail("launch.copy: cannot read " + path);
  if (!S_ISREG(info.st_mode)) throw EnvError("launch.copy: " + path + " is neither a file nor a folder");
  return {std::move(name), path, info.st_size, (info.st_mode & kAnyExecute) != 0};
}

std::vector<Copy::File> files_in(const std::string& folder) {
  std::vector<Copy::File> files;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code unknown;
    const bool is_folder = it->is_directory(unknown);
    if (is_folder && it->is_symlink(unknown))
      throw EnvError("launch.copy: " + it->path().string() +
                     " is a link to a folder; add that folder to launch.copy, or name it instead");
    if (!is_folder) files.push_back(file_at(it->path(), it->path().lexically_relative(folder)));
  }
  if (error) throw EnvError("launch.copy: cannot read " + folder + ": " + error.message());
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return files;
}

Copy copy_of(const std::string& path) {
  Copy copy{.path = path};
  std::error_code error;
  if (fs::is_directory(path, error))
    copy.files = files_in(path);
  else
    copy.files.push_back(file_at(path, ""));
  if (copy.files.empty()) throw EnvError("launch.copy: " + path + " contains no files");
  Sha256 digest;
  for (const Copy::File& file : copy.files) {
    digest.add_text(file.name);
    digest.add_text(std::to_string(file.bytes) + (file.is_executable ? "x" : ""));
    digest.add_file(file.path);
  }
  copy.name = digest.hex();
  return copy;
}

bool is_name(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// Returns whether a path stays below the folder that it is joined to.
bool stays_below(const fs::path& path) {
  return path.is_relative() &&
         std::none_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".." || part == "."; });
}

/// Write-protects a file, since others use it too. Folders stay writable, so that they can be deleted.
void make_read_only(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return;
  const mode_t mode = (info.st_mode & kAnyExecute) != 0 ? 0500 : 0400;
  if (chmod(path.c_str(), mode) != 0) fail("cannot write-protect " + path);
}

/// Makes a link at `path` to `target`; if `real` is the same or below, a real folder with links to the entries.
void link_to(const std::string& target, const std::string& path, const std::string& real) {
  std::error_code error;
  const bool is_real = is_in(real, path) && fs::is_directory(target, error);
  fs::create_directories(is_real ? fs::path(path) : fs::path(path).parent_path(), error);
  if (is_real) {
    for (const auto& entry : fs::directory_iterator(target, error))
      link_to(entry.path(), path + "/" + entry.path().filename().string(), real);
    return;
  }
  const bool is_there = fs::is_symlink(path, error);  // from the previous attempt
  if (!is_there && symlink(target.c_str(), path.c_str()) != 0) fail("cannot create the link " + path);
}

}  // namespace

int64_t Copy::bytes() const {
  int64_t sum = 0;
  for (const File& file : files) sum += file.bytes;
  return sum;
}

std::vector<Copy> copies_of(const std::vector<std::string>& paths) {
  std::vector<Copy> copies;
  for (size_t i = 0; i < paths.size(); ++i) {
    bool is_elsewhere = false;
    for (size_t other = 0; other < paths.size(); ++other)
      if (other != i && is_in(paths[i], paths[other])) is_elsewhere |= paths[i] != paths[other] || other < i;
    if (!is_elsewhere) copies.push_back(copy_of(paths[i]));
  }
  return copies;
}

std::optional<std::string> copied_path(const std::vector<std::string>& paths, const std::string& path) {
  const bool is_copied = std::any_of(paths.begin(), paths.end(), [&](const auto& copy) { return is_in(path, copy); });
  return is_copied ? std::optional(kCopied + path) : std::nullopt;
}

std::optional<std::string> copied_folder(const std::vector<std::string>& paths, const std::string& folder) {
  const auto concerns = [&](const auto& copy) { return is_in(folder, copy) || is_in(copy, folder); };
  return std::any_of(paths.begin(), paths.end(), concerns) ? std::optional(kCopied + folder) : std::nullopt;
}

KeptCopies::KeptCopies(std::string folder, std::string program_folder, std::vector<Wanted> wanted)
    : folder_(std::move(folder)),
      cache_(fs::path(folder_).parent_path().parent_path() / "copies"),
      program_folder_(std::move(program_folder)),
      wanted_(std::move(wanted)) {
  for (const Wanted& copy : wanted_)
    if (!is_name(copy.name) || !copy.path.starts_with("/") || !stays_below(copy.path.substr(1)))
      throw EnvError("'" + copy.path + "' cannot be copied to this host");
  if (!stays_below(program_folder_)) throw EnvError("'" + program_folder_ + "' is not a valid program folder");
}

/// Accepts only wanted names, since other runs trust the names in the cache.
void KeptCopies::require_wanted(const std::string& name) const {
  const bool is_wanted =
      std::any_of(wanted_.begin(), wanted_.end(), [&](const Wanted& copy) { return copy.name == name; });
  if (!is_wanted) throw EnvError("'" + name + "' is not a copy that this run needs");
}

std::set<std::string> KeptCopies::missing() const {
  std::set<std::string> names;
  std::error_code error;
  for (const Wanted& copy : wanted_)
    if (!fs::exists(kept(copy.name), error)) names.insert(copy.name);
  return names;
}

void KeptCopies::write(const std::string& name, const std::string& file, int64_t offset, std::string_view bytes,
                       bool is_executable) const {
  require_wanted(name);
  if (!stays_below(file) || offset < 0) throw EnvError("'" + file + "' is not a valid file name in a copy");
  const std::string path = file.empty() ? coming(name) : coming(name) + "/" + file;
  std::error_code unmade;  // on failure, opening the file fails too
  fs::create_directories(fs::path(path).parent_path(), unmade);
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | (offset == 0 ? O_TRUNC : 0),
                      is_executable ? 0700 : 0600);
  const bool is_written = fd >= 0 && lseek(fd, offset, SEEK_SET) >= 0 && put_all(fd, bytes);
  const int fault = errno;
  if (fd >= 0) close(fd);
  errno = fault;
  if (!is_written) fail("cannot write " + path);
}

void KeptCopies::keep(const std::string& name) const {
  require_wanted(name);
  std::error_code error;
  const std::string from = coming(name), to = kept(name);
  make_read_only(from);
  for (fs::recursive_directory_iterator it(from, error), end; !error && it != end; it.increment(error))
    make_read_only(it->path());
  fs::create_directories(cache_, error);
  if (rename(from.c_str(), to.c_str()) == 0) return;
  if (!fs::exists(to, error)) fail("cannot store " + to);
  fs::remove_all(from, error);  // the agent of another run was faster
}

void KeptCopies::link() const {
  for (const Wanted& copy : wanted_)
    link_to(kept(copy.name), folder_ + "/" + kCopied + copy.path,
            program_folder_.empty() ? "" : folder_ + "/" + program_folder_);
  std::error_code error;
  if (!program_folder_.empty()) fs::create_directories(folder_ + "/" + program_folder_, error);
}

}  // namespace trainctl::hosts
