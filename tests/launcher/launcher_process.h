// A launcher in a process of its own, running shell scripts as ranks, for tests that hurt it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launcher/binding.h"

struct LauncherOptions {
  double grace_seconds = 10;
  double timeout_seconds = 60;
  int max_restarts = 0;
  bool progress = false;  ///< a rank moves on at every look, unless there is `log_dir`/still.<RANK>
  bool gate = false;      ///< ranks are asked to end by `log_dir`/stop, and say their last step in `log_dir`/stopped
  std::vector<trainctl::RankBinding> bindings = {};
};

/// Forks; the child supervises one `sh -c script` a rank (RANK, DIR and ATTEMPT in its environment) and exits as
/// trainctl run would. It writes the failure report to `log_dir`/report, outcome.json to `log_dir`/outcome, and
/// notices, a line each, to `log_dir`/notices. Returns the launcher's pid. It dies with the thread that started it.
int start_launcher(const std::string& log_dir, const std::vector<std::string>& scripts,
                   const LauncherOptions& options = {});

/// The exit status of a pid, 128 + signal where one killed it.
int wait_for(int pid);

/// The calling process, just forked, is killed when `parent` ends: a test that fails leaves no run behind.
void die_with(int parent);

/// Whether a process exists and is no zombie.
bool alive(int pid);

/// Whether SIGSTOP has stopped it: a busy machine takes its time.
bool stopped(int pid);

/// Waits until it holds; the last answer. It gives up after 100 seconds: an answer that takes long is none of a test's
/// business, and one that never comes should be told before CTest's limit.
bool eventually(const std::function<bool()>& holds);

/// A file's text; "" where there is none, as of a process that has gone, be it while its /proc is read.
std::string slurp(const std::string& path);

/// The number that a script wrote to a file (with `echo $$ > file`), waiting for it. Throws where none comes: a signal
/// to process 0 would be one to the tests themselves.
int pid_in(const std::string& path);
