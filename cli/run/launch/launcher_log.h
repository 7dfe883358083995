// launcher.log, the output of a detached run's launcher. A separate process writes the file, so that a hanging disk
// blocks that process and not the launcher (quiet_fork.h).
#pragma once

#include <string>

namespace trainctl {

class LauncherLog {
 public:
  /// Appends to the file. Throws EnvError.
  explicit LauncherLog(const std::string& path);
  LauncherLog(const LauncherLog&) = delete;
  LauncherLog& operator=(const LauncherLog&) = delete;
  ~LauncherLog();

  /// Descriptor to write to. Writes fail with EAGAIN if the disk has hung for some seconds and much output is pending.
  int fd() const { return fd_; }
  /// Waits until the file has all that was written, at most `seconds`.
  void flush(double seconds) const;

 private:
  int fd_ = -1;
};

}  // namespace trainctl
