// A launcher in a separate process with shell scripts as ranks, for tests that inject faults.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launcher/binding.h"

struct LauncherOptions {
  double grace_seconds = 10;
  double timeout_seconds = 60;
  int max_restarts = 0;
  bool explain = true;    ///< Supervision::Limits::ranks_explain
  bool progress = false;  ///< a rank makes progress at every look, unless `log_dir`/still.<RANK> exists
  bool gate = false;      ///< ranks are asked to end by `log_dir`/stop, and write their last step to `log_dir`/stopped
  std::vector<trainctl::RankBinding> bindings = {};
};

/// Forks a launcher. The child supervises one `sh -c script` per rank (with RANK, DIR and ATTEMPT in its environment),
/// and exits as trainctl run would. It writes the failure report to `log_dir`/report, outcome.json to
/// `log_dir`/outcome, and notices, one per line, to `log_dir`/notices. Returns the child's pid. The child is killed
/// when the thread that started it ends.
int start_launcher(const std::string& log_dir, const std::vector<std::string>& scripts,
                   const LauncherOptions& options = {});

/// Waits for a child process and returns its exit status, or 128 + signal if a signal killed it.
int wait_for(int pid);

/// Makes the calling process, just forked, die with `parent`: a failed test leaves no run behind.
void die_with(int parent);

/// Returns whether a process exists and is not a zombie.
bool alive(int pid);

/// The child processes of `pid` with that name (/proc/<pid>/comm), ascending.
std::vector<int> children_named(int pid, const std::string& name);

/// Waits for the one child process of `pid` with that name: a child names itself some time after it was forked.
int child_named(int pid, const std::string& name);

/// Returns whether SIGSTOP has stopped the process, which takes a while on a busy machine.
bool stopped(int pid);

/// Waits until `holds` returns true; returns its last result. Gives up after 100 seconds, before CTest's limit; a slow
/// machine must not fail a test.
bool eventually(const std::function<bool()>& holds);

/// A file's text; "" if there is none, for example in /proc of a process that ends while it is read.
std::string slurp(const std::string& path);

/// Waits for the number that a script writes to a file (`echo $$ > file`). Throws if none is written: a signal to
/// process 0 would go to the tests themselves.
int pid_in(const std::string& path);
