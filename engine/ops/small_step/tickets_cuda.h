// Counters in device memory by which the blocks of one launch learn which of them ends last. They are 0 between
// launches; each kernel holds its own, so that kernels of two streams never share one.
#pragma once

#include <memory>

namespace trainctl {

/// `count` counters of the current device, given back with the last copy. Null where none are left: then a kernel
/// does without a second stage.
using Tickets = std::shared_ptr<unsigned>;
Tickets take_tickets(int count);

}  // namespace trainctl
