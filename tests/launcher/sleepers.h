// Scripts for ranks that sleep, and checks that none of their processes remains.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "tests/launcher/launcher_process.h"

/// A script that writes its pid to DIR/pid.<RANK> and then sleeps. It has a child that sleeps too.
inline const char* const kSleeper = "sleep 1000 & echo $! > $DIR/child.$RANK; echo $$ > $DIR/pid.$RANK; wait";
/// The same script, except that it ignores SIGTERM.
inline const char* const kDeaf =
    "trap '' TERM; sleep 1000 & echo $! > $DIR/child.$RANK; echo $$ > $DIR/pid.$RANK; while :; do wait; done";

inline std::vector<int> pids_of(const std::string& dir, int ranks) {
  std::vector<int> pids;
  for (int rank = 0; rank < ranks; ++rank) {
    pids.push_back(pid_in(dir + "/pid." + std::to_string(rank)));
    pids.push_back(pid_in(dir + "/child." + std::to_string(rank)));
  }
  return pids;
}

/// Returns whether all of these processes have ended. A process dies only a moment after it was sent SIGKILL.
inline bool all_gone(const std::vector<int>& pids) {
  return eventually([&] { return std::none_of(pids.begin(), pids.end(), [](int pid) { return alive(pid); }); });
}
