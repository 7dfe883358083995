// Counters in device memory with which the blocks of a launch determine which one ends last. They are 0 between
// launches. Each kernel has its own, so that kernels of two streams never share one.
#pragma once

#include <memory>

namespace trainctl {

/// `count` counters of the current device, freed with the last copy of the pointer. There are always enough: a kernel
/// that went without would add in another order than the same kernel in another run.
using Tickets = std::shared_ptr<unsigned>;
Tickets take_tickets(int count);

}  // namespace trainctl
