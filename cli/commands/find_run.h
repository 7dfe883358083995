// Finds the run that the user means.
#pragma once

#include <optional>
#include <string>

#include "launcher/registry.h"
#include "launcher/run_directory.h"

namespace CLI {
class App;
}

namespace trainctl {

/// Finds a run, active or not: "3", "log_output/3" as trainctl run prints it, or "latest", which is also the meaning of
/// "". Throws SpecError.
RunDirectory find_run(std::string name, std::string log_dir);

/// Options of commands that act on an active run.
struct RunArguments {
  std::optional<int> run;
  std::string log_dir;  ///< empty: not given

  void add_to(CLI::App& command, const std::string& what);

  /// With a number: that run in --log-dir or ./log_output, or the only active run with that number elsewhere.
  /// Without: the only active run; of several the only one in --log-dir or ./log_output, or the only one below the
  /// current folder. Throws SpecError if there is none, or more than one.
  RegisteredRun find_running() const;
};

/// "run 3 (mnist_mlp)".
std::string name_of(const RegisteredRun& run);

/// A log directory for display: relative if it is below the working directory.
std::string short_path(const std::string& absolute);

}  // namespace trainctl
