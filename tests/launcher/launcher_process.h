// A launcher in a process of its own, running shell scripts as ranks, for tests that hurt it.
#pragma once

#include <functional>
#include <string>
#include <vector>

/// Forks; the child supervises one `sh -c script` a rank (RANK in its environment) and exits as trainctl
/// run would, having written the failure report to `log_dir`/report. Returns the launcher's pid.
int start_launcher(const std::string& log_dir, const std::vector<std::string>& scripts, double grace_seconds = 10);

/// The exit status of a pid, 128 + signal where one killed it.
int wait_for(int pid);

/// Whether a process exists and is no zombie.
bool alive(int pid);

/// Waits, at most some 20 seconds, until it holds; the last answer.
bool eventually(const std::function<bool()>& holds);

/// A file's text; "" where there is none.
std::string slurp(const std::string& path);

/// The number that a script wrote to a file (with `echo $$ > file`), waiting for it.
int pid_in(const std::string& path);
