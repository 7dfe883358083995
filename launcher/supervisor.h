// Runs a job's ranks to their end on one event loop: signals, a tick that drains their output, and the
// decisions of Supervision carried out on real processes.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/cluster.h"
#include "launcher/first_cause.h"
#include "launcher/run_directory.h"
#include "launcher/spawn.h"
#include "launcher/supervision.h"

namespace trainctl {

/// What to start and whom to tell. Callbacks run on the loop's thread, which is the caller's.
struct Launch {
  Cluster cluster;
  RunDirectory directory;
  /// What a rank runs; its output goes to its folder. OMP_NUM_THREADS is set to its share of the
  /// cores unless it is in the environment already.
  std::function<ProcessCommand(const RankPlace& place)> command;
  Supervision::Limits limits = {};

  // All optional.
  std::function<void(int rank, std::string_view line)> on_line = {};  ///< of its stdout
  std::function<void(int rank, bool failed)> on_rank_ended = {};      ///< before anything is done about it
  std::function<std::string(int rank)> doing = {};                    ///< "step 412, all_reduce grad.0"
  std::function<void()> on_tick = {};                                 ///< some 40 times a second
  std::function<void(std::string_view message)> on_notice = {};       ///< for the user, now: "Ctrl-C again kills"
};

struct Outcome {
  int exit_code = 0;  ///< 0, kExitRankFailed, or 128 + signal
  int signal = 0;     ///< that the user sent; 0: none
  double seconds = 0;
  Cause cause;
  std::vector<RankReport> reports;
};

/// Starts all ranks and returns when none is left. SIGINT, SIGTERM and SIGHUP ask the ranks to stop;
/// a second one kills them. Runs `loop`, and with it whatever else lives there (the store). Throws
/// EnvError when it cannot even begin.
Outcome supervise(const Launch& launch, ProcessRunner& runner, boost::asio::io_context& loop);

}  // namespace trainctl
