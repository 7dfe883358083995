// Runs the built trainctl as a user would.
#pragma once

#include <string>
#include <vector>

struct CommandResult {
  int exit_code = -1;  ///< 128 + signal where one killed it
  std::string out, err;
};

/// In `directory`, without a terminal, stdin empty.
CommandResult trainctl_command(const std::string& directory, const std::vector<std::string>& arguments);

/// The same without waiting: its pid. Output goes to `directory`/out and err. It dies with the thread that started it.
int start_trainctl(const std::string& directory, const std::vector<std::string>& arguments);
/// Its end.
CommandResult finish_trainctl(const std::string& directory, int pid);

bool contains(const std::string& text, const std::string& part);

/// Writes tests/jobs/small.yaml there, with `more` behind it; returns the file.
std::string small_job(const std::string& directory, const std::string& more = "");

/// Children of a launcher that are workers, by rank; -1 for one that is not there.
std::vector<int> workers_of(int launcher, int ranks);
