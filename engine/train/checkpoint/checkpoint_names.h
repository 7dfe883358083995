// The names in a directory of checkpoints (checkpoint_directory.h).
//
//   name = "." "step_" step ".attempt_" attempt      being written, or left by a crash
//        | "step_" step [".attempt_" attempt]
//   step = at least 8 digits
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl {

struct CheckpointName {
  int64_t step = 0;
  int attempt = 0;  ///< 0: the name has none
  bool hidden = false;

  std::string text() const;
};

/// The name of a published checkpoint, such as "step_00000120".
inline std::string checkpoint_name(int64_t step) { return CheckpointName{step, 0, false}.text(); }

/// Null for any text that is not such a name, and for another spelling of a name, such as step_120.
std::optional<CheckpointName> parse_checkpoint_name(std::string_view text);

/// Returns the names in a directory and those of its .newest, the newest first: by step, then by attempt. None if there
/// is no such directory. Throws EnvError if it cannot be read.
std::vector<CheckpointName> checkpoint_names(const std::string& directory);

inline constexpr std::string_view kNewestName = ".newest";
inline constexpr std::string_view kAttemptsName = ".attempts";

}  // namespace trainctl
