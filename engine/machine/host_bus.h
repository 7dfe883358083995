// The bus between a device and the memory of its host.
#pragma once

#include "engine/machine/machine.h"

namespace trainctl {

/// Returns the rate in each direction, both at once. GPUs: a PCIe 5.0 x16 link. Ranks on CPUs copy within the memory of
/// their host.
inline BytesPerSecond host_bus_rate(const Machine& machine) {
  constexpr BytesPerSecond kBus{50e9};
  return machine.kind == DeviceKind::cuda ? kBus : BytesPerSecond{machine.memory_rate.value / 2};
}

}  // namespace trainctl
