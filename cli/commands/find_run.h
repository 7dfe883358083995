// Which run does the user mean? For the commands that act on one that is running.
#pragma once

#include <optional>
#include <string>

#include "launcher/registry.h"

namespace CLI {
class App;
}

namespace trainctl {

struct RunArguments {
  std::optional<int> run;
  std::string log_dir;  ///< empty: not given

  void add_to(CLI::App& command, const std::string& what);

  /// The run of that number in --log-dir, or in log_output here, or the only one of that number elsewhere; without
  /// a number the only one that runs. Throws SpecError where there is none, or more than one.
  RegisteredRun find_running() const;
};

/// "run 3 (mnist_mlp)".
std::string name_of(const RegisteredRun& run);

/// A log directory as it is shown and typed: relative where it lies below the working directory.
std::string short_path(const std::string& absolute);

}  // namespace trainctl
