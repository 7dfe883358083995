// The registry of this user's runs on this host, in any log folder. ps, stop and attach use it to find launchers.
//
//   $XDG_RUNTIME_DIR/trainctl/     or, if that is unset, /tmp/trainctl-<uid>/; mode 0700, owned by this user
//     <id>.run                     the run, as JSON; its launcher holds a flock on it until it ends
//     <id>.status                  its live status (live_status.h), replaced atomically
//
// An entry without a lock was left by a killed launcher; the first process that sees it removes it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/live_status.h"

namespace trainctl {

struct RegisteredRun {
  int run = 0;
  std::string name;
  std::string log_dir;  ///< absolute
  std::string job;      ///< the job file, absolute
  int launcher = 0;     ///< pid
  int ranks = 0;
  double started = 0;  ///< unix seconds
  std::string id;      ///< the entry's id; filled in by Registration
};

/// The launcher's side. The entry exists from construction until the launcher ends.
class Registration {
 public:
  /// Throws EnvError if no private folder can be used.
  explicit Registration(RegisteredRun run);
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration();

  /// Does not throw, since a failure to write the status must not end the training.
  void publish(const LiveStatus& status) const;

 private:
  std::string stem_;
  int lock_ = -1;
};

/// The runs whose launchers are alive, oldest first.
std::vector<RegisteredRun> running_runs();

bool still_runs(const RegisteredRun& run);
std::optional<LiveStatus> live_status(const RegisteredRun& run);

}  // namespace trainctl
