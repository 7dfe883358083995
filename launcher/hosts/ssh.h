// Reaching a host by the user's own ssh: its configuration, keys, agents, jump hosts and ports are as on the command
// line, and so are its checks of host keys. It never asks: what it would ask is an error (BatchMode).
#pragma once

#include <memory>
#include <string>

#include "launcher/hosts/transport.h"

namespace trainctl::hosts {

/// `ssh`: launch.ssh; it is cut at blanks.
std::unique_ptr<Transport> ssh_transport(std::string ssh);

}  // namespace trainctl::hosts
