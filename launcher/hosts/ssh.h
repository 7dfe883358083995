// Reaches a host with the user's own ssh: its configuration, keys, agents, jump hosts, ports and host key checks are
// the same as on the command line. It never prompts: anything that ssh would ask is an error (BatchMode).
#pragma once

#include <memory>
#include <string>

#include "launcher/hosts/transport.h"

namespace trainctl::hosts {

/// `ssh`: launch.ssh, which is split at blanks.
std::unique_ptr<Transport> ssh_transport(std::string ssh);

}  // namespace trainctl::hosts
