// The agent of a host: starts and supervises the ranks that run there, for a launcher on another host. It makes only
// one decision by itself: if it has not heard from its launcher for launch.reconnect, it kills its ranks and ends.
//
//   ~/.cache/trainctl/runs/<id>/        mode 0700; deleted when the agent leaves
//     socket                            the launcher connects here, through relays (relay.h)
//     lock.<host>                       held by the agent
//     given/                            files from the launcher, for one attempt
//     copied/                           launch.copy (copies.h)
//     logs/<run>/job.yaml, rank.<N>/    files written by ranks, which are sent to the launcher as they grow
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/spawn.h"

namespace trainctl::hosts {

/// Message about saves between a host and the launcher. Only the two ends know its meaning; see
/// cli/run/saves/host_saves.h.
struct SaveMessage {
  std::string name;
  int rank = -1;
  int64_t number = 0;
  std::string text;  ///< at most kMaxTextBytes
};

/// State shared by the ranks of a host, and operations that depend on the kind of ranks.
class HostShare {
 public:
  virtual ~HostShare() = default;

  /// Prepares a new attempt. `what` comes from the launcher's workload, `ranks` are those of this host, and `given` is
  /// a folder for files from the launcher. Returns whether these are needed. Throws EnvError.
  virtual bool prepare(const nlohmann::json& what, const std::vector<int>& ranks, const std::string& given) = 0;
  /// Completes the command of a rank: adds descriptors and the store of this host.
  virtual void complete(int rank, ProcessCommand& command, uint16_t store_port, const std::string& store_token) = 0;
  /// changes() returns the changes in the statuses of this host's ranks; apply() takes those of other hosts' ranks.
  virtual std::string changes() = 0;
  virtual void apply(std::string_view changes) = 0;
  /// See StepGate.
  virtual uint64_t hold() = 0;
  virtual void stop_after(uint64_t step) = 0;
  virtual void release() = 0;
  virtual void ended(int rank, bool failed) = 0;
  /// The next message for the launcher; nullopt: none now.
  virtual std::optional<SaveMessage> next_save_message() = 0;
  virtual void take(const SaveMessage& message) = 0;
};

struct AgentOptions {
  std::string folder;             ///< folder of this agent
  std::vector<std::string> self;  ///< the words that start this binary
  int listener = -1;              ///< a listening socket
  std::unique_ptr<HostShare> share;
};

/// Serves a launcher until the run is over. Returns the exit code.
int serve_as_agent(AgentOptions options);

}  // namespace trainctl::hosts
