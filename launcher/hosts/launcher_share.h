// The launcher's counterparts of HostShare (agent.h): what the ranks of all hosts share through the launcher.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/hosts/agent.h"

namespace trainctl::hosts {

/// The state of an attempt, including the board from which the launcher reads the progress of ranks. The defaults suit
/// ranks that share nothing.
class LauncherShare {
 public:
  virtual ~LauncherShare() = default;

  /// The `what` of HostShare::prepare.
  virtual nlohmann::json for_agents() const { return nullptr; }
  /// Files of this host that are sent to a host's agent if its share needs them: name -> path.
  virtual std::map<std::string, std::string> given() const { return {}; }
  /// At the start of an attempt: files of the run's folder that keep that many bytes; output of ranks is appended.
  virtual std::map<std::string, int64_t> kept_bytes() const { return {}; }

  /// Applies changes from a host with the ranks `ranks`; returns false if they concern other ranks.
  virtual bool apply(std::string_view /*changes*/, const std::vector<int>& /*ranks*/) { return true; }
  /// Changes since the last call for this host in the statuses of other hosts' ranks.
  virtual std::string changes_for(int /*host*/) { return ""; }
  /// Makes all ranks end after this step.
  virtual void stop_after(uint64_t /*step*/) {}
};

/// The saves of ranks, and the recovery of their state. The defaults suit ranks whose state is not saved.
class LauncherSaves {
 public:
  virtual ~LauncherSaves() = default;

  /// Handles a message about saves from the host that has `ranks`; returns false if no host may send it.
  virtual bool take(const SaveMessage& /*message*/, const std::vector<int>& /*ranks*/) { return false; }
  /// The pending messages for all hosts.
  virtual std::vector<SaveMessage> messages() { return {}; }
  /// Returns whether all gates must be held.
  virtual bool wants_hold() const { return false; }
  /// All gates are held: no rank has started a step above `highest`.
  virtual void gates_held(uint64_t /*highest*/) {}
  /// Called when the ranks have ended and hosts with these ranks still respond: recovers the state that they have.
  /// Returns a number that grows with the received data, and nullopt once nothing more is expected.
  virtual std::optional<int64_t> rescue(const std::vector<std::vector<int>>& /*hosts*/) { return std::nullopt; }
};

}  // namespace trainctl::hosts
