// The runs of this user on this host, whatever folder they log to: how ps, stop and attach find a launcher.
//
//   $XDG_RUNTIME_DIR/trainctl/     or, where there is none, /tmp/trainctl-<uid>/; mode 0700, ours alone
//     <id>.run                     who it is, as JSON; the launcher holds its flock, however it ends
//     <id>.status                  what it is doing (live_status.h), replaced as a whole
//
// An entry that nobody holds is what a killed launcher left; whoever sees it removes it.
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
  std::string id;      ///< of the entry; filled in by Registration
};

/// The launcher's side: there from its construction to the launcher's end.
class Registration {
 public:
  /// Throws EnvError where there is no folder that is ours alone.
  explicit Registration(RegisteredRun run);
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration();

  /// Does not throw: nobody's training should end for a status that cannot be written.
  void publish(const LiveStatus& status) const;

 private:
  std::string stem_;
  int lock_ = -1;
};

/// Those whose launchers live, the oldest first.
std::vector<RegisteredRun> running_runs();

bool still_runs(const RegisteredRun& run);
std::optional<LiveStatus> live_status(const RegisteredRun& run);

}  // namespace trainctl
