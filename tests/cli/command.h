// Runs the built trainctl as a user would.
#pragma once

#include <string>
#include <vector>

struct CommandResult {
  int exit_code = -1;  ///< 128 + signal if one killed it
  std::string out, err;
};

/// Runs it in `directory`, without a terminal, with an empty stdin.
CommandResult trainctl_command(const std::string& directory, const std::vector<std::string>& arguments);

/// The same without waiting; returns its pid. Output goes to `directory`/out and err. It is killed when the thread that
/// started it ends.
int start_trainctl(const std::string& directory, const std::vector<std::string>& arguments);
/// The same for any program, which is looked up in PATH: `sh`, to start trainctl under a limit.
int start_words(const std::string& directory, std::vector<std::string> words);
/// Waits for it.
CommandResult finish_trainctl(const std::string& directory, int pid);

bool contains(const std::string& text, const std::string& part);

/// Writes tests/jobs/small.yaml there, with `more` appended; returns the file.
std::string small_job(const std::string& directory, const std::string& more = "");

/// A launcher's child processes that are workers, by rank; -1: none.
std::vector<int> workers_of(int launcher, int ranks);
