// The address on which a host listens for the others.
#pragma once

#include <string>

namespace trainctl::hosts {

/// The IPv4 address of `interface`; if that is empty, the one at which this host was reached, as the door (clusters/
/// door.h) or ssh says it, or that of the way to the launcher's host, which srun names; else 127.0.0.1. Throws
/// EnvError.
std::string own_address(const std::string& interface);

}  // namespace trainctl::hosts
