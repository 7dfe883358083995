// The text of a job, from a file or from a stream that can be read only once.
#pragma once

#include <string>

namespace trainctl {

inline constexpr const char* kStdinName = "<stdin>";

struct JobText {
  std::string name;    ///< for messages: the file, or kStdinName
  std::string text;    ///< at most one byte more than a job file may have
  std::string folder;  ///< relative paths in the job are relative to it; "": the current directory
  /// Plugins may have different contents than the job states: the job of a run that has ended.
  bool any_plugins = false;
};

/// Reads a file, standard input ("-"), or a pipe such as the shell's <(…). A job from a stream has no folder of its
/// own, so its paths are relative to the current directory. Throws SpecError for what cannot be read, and for a FIFO
/// that no process opens for writing within a few seconds.
JobText read_job_text(const std::string& file);

}  // namespace trainctl
