// Time of a kernel that was not measured, from the data sheets of a device.
#pragma once

#include "engine/machine/machine.h"

namespace trainctl {

/// Time without the launch: at least that of its operations at the rate `products` and that of its bytes at the
/// memory's rate.
/// A product of matrices takes as many waves of tiles as it has tiles for each multiprocessor, and then writes.
/// Attention computes its products and its exponentials one after the other.
Seconds unmeasured_time(const Machine& machine, const KernelDef& kernel, Infos inputs, Infos outputs, const Cost& cost,
                        FlopsPerSecond products);

}  // namespace trainctl
