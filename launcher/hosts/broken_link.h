// Finds the broken link between two hosts from the hosts' own checks of their links (link_check.h).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/supervision.h"

namespace trainctl::hosts {

struct HostLinks {
  std::string host;
  bool is_heard = false;                      ///< whether the launcher receives data from it
  std::map<std::string, std::string> faults;  ///< name of a host that it cannot reach -> "cannot connect to …"
};

/// A broken link between two hosts that the launcher still hears, since a host that it does not hear is itself lost. If
/// several links are broken, it is the first one of the host that has the most of them.
std::optional<LostLink> broken_link(const std::vector<HostLinks>& hosts);

}  // namespace trainctl::hosts
