// What a kernel takes that was not measured, from what data sheets say of a device.
#pragma once

#include "engine/machine/machine.h"

namespace trainctl {

/// Without its launch, at least what its operations take at the rate `products` and its bytes at the memory's rate.
/// A product of matrices takes as many waves of tiles as it has tiles for each multiprocessor, and then writes.
/// Attention computes its products and its exponentials one after the other.
Seconds unmeasured_time(const Machine& machine, const KernelDef& kernel, Infos inputs, Infos outputs, const Cost& cost,
                        FlopsPerSecond products);

}  // namespace trainctl
