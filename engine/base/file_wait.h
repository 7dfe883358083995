// Waits of this process for file systems. A file system that does not answer (a network's, a FUSE mount) leaves a
// thread in a call that nothing interrupts, so another thread must report which file it is.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "engine/base/error.h"

namespace trainctl {

/// Held around each call that opens, lists or reads a file. `path` must outlive it.
class FileWait {
 public:
  explicit FileWait(const std::string& path);
  ~FileWait();
  FileWait(const FileWait&) = delete;
  FileWait& operator=(const FileWait&) = delete;

  /// The current wait of one thread; other threads read it.
  struct Slot {
    std::mutex mutex;
    const std::string* path = nullptr;  ///< null: the thread waits for no file
    std::chrono::steady_clock::time_point since;
  };

 private:
  Slot& slot_;
};

/// Watches the waits of all threads while it lives. If one has lasted for nearly `timeout_seconds` (launch.timeout),
/// calls `on_hang` on a thread of its own with an error that names the file; `on_hang` need not return. 0: no wait is
/// too long.
class FileWatch {
 public:
  FileWatch(double timeout_seconds, std::function<void(const EnvError&)> on_hang);
  ~FileWatch();
  FileWatch(const FileWatch&) = delete;
  FileWatch& operator=(const FileWatch&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool has_ended_ = false;
  std::thread thread_;  ///< last: it uses the others
};

}  // namespace trainctl
