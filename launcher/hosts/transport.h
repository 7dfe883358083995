// Reaches a host by a process of this host whose pipes are connected to a shell there. The shell runs a script
// of scripts.h, and the pipes carry the stream of frame.h. ssh.h is one way, a cluster's own command another.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/spec/launch_spec.h"

namespace trainctl::hosts {

/// The user is notified of a host whose first response takes longer.
inline constexpr double kLateSeconds = 4.5;

/// A child process with pipes. It is killed when the launcher ends.
struct PipedChild {
  int pid = -1;
  int feeder = -1;                  ///< another process; -1: none
  int in = -1, out = -1, err = -1;  ///< our ends; the owner closes them
};
/// Has a process write a child's input.
using Feed = std::function<void(int fd)>;
/// Starts the command with pipes. If `feed` is set, it writes the child's input, and `in` is -1. Throws EnvError.
PipedChild start_piped(const std::vector<std::string>& words, const Feed& feed = {});

class Transport {
 public:
  virtual ~Transport() = default;

  /// "ssh", for messages.
  virtual std::string name() const = 0;
  /// The words of a command on this host that runs a POSIX shell script on another host, with the same stdin, stdout
  /// and stderr. It never prompts; when it ends, the script's stdin ends. `script` has no single quote. Throws
  /// EnvError.
  virtual std::vector<std::string> words(const std::string& host, const std::string& script) const = 0;

  PipedChild run(const std::string& host, const std::string& script, const Feed& feed = {}) const {
    return start_piped(words(host, script), feed);
  }
};

/// Returns the way in which the hosts of a job are reached.
std::unique_ptr<Transport> transport_of(const LaunchSpec& launch);

}  // namespace trainctl::hosts
