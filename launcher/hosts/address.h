// The address on which a host listens for the others.
#pragma once

#include <string>

namespace trainctl::hosts {

/// The IPv4 address of `interface`. If that is empty: the address at which this host was reached, as reported by the
/// remote-execution listener (clusters/remote_listener.h) or ssh, or the one on the route to the launcher's host, which
/// srun names; else 127.0.0.1. Throws EnvError.
std::string own_address(const std::string& interface);

}  // namespace trainctl::hosts
