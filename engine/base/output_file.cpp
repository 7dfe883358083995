// Files that a command writes where the user says, often in a folder that others can write to. A file is written under
// another name in the same folder and then renamed (rename(2)), which replaces a link itself.
#include "engine/base/output_file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "engine/base/error.h"
#include "engine/base/machine_limits.h"
#include "engine/base/put_all.h"

namespace trainctl {
namespace {

[[noreturn]] void fail(const std::string& path, int error) {
  throw EnvError("cannot write " + path + ": " + describe_errno(error));
}

/// Paths under /dev and /proc may be kernel links such as /dev/stdout, which are safe to follow.
bool is_of_kernel(const std::string& path) { return path.starts_with("/dev/") || path.starts_with("/proc/"); }

/// Writes and closes. Returns errno, or 0.
int put_and_close(int fd, std::string_view text) {
  int error = put_all(fd, text) ? 0 : errno;
  if (close(fd) != 0 && error == 0) error = errno;
  return error;
}

std::string name_beside(const std::string& path) {
  uint64_t number = 0;
  check(getrandom(&number, sizeof number, 0) == sizeof number, "getrandom must return random bytes");
  char suffix[24];
  std::snprintf(suffix, sizeof suffix, ".%016llx", static_cast<unsigned long long>(number));
  return path + suffix;
}

/// An existing file may be writable even if its folder accepts no new files.
void write_in_place(const std::string& path, std::string_view text, mode_t mode) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC | O_TRUNC | (is_of_kernel(path) ? 0 : O_NOFOLLOW));
  if (fd < 0) fail(path, errno);
  if (mode == 0600) fchmod(fd, mode);
  if (const int error = put_and_close(fd, text); error != 0) fail(path, error);
}

}  // namespace

void require_no_link(const std::string& path) {
  struct stat info {};
  if (is_of_kernel(path) || lstat(path.c_str(), &info) != 0 || !S_ISLNK(info.st_mode)) return;
  throw EnvError("cannot write " + path + ": it is a symbolic link; use the path of its target, or delete the link");
}

void write_output(const std::string& path, std::string_view text, FileReaders readers) {
  require_no_link(path);
  struct stat info {};
  const bool exists = stat(path.c_str(), &info) == 0;
  const mode_t mode = readers == FileReaders::owner ? 0600 : 0666;  // less the umask
  if (exists && (is_of_kernel(path) || !S_ISREG(info.st_mode))) return write_in_place(path, text, 0);
  const std::string beside = name_beside(path);
  const int fd = open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd < 0 && exists && (errno == EACCES || errno == EROFS)) return write_in_place(path, text, mode);
  if (fd < 0) fail(path, errno);
  if (exists && readers == FileReaders::all) fchmod(fd, info.st_mode & 07777);
  int error = put_and_close(fd, text);
  if (error == 0 && rename(beside.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return;
  unlink(beside.c_str());
  fail(path, error);
}

}  // namespace trainctl
