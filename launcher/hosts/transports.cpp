// Chooses how to reach a host.
#include "launcher/hosts/ssh.h"
#include "launcher/hosts/transport.h"

namespace trainctl::hosts {

std::unique_ptr<Transport> transport_of(const LaunchSpec& launch) { return ssh_transport(launch.ssh); }

}  // namespace trainctl::hosts
