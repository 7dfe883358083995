// The few functions of NVML that find devices and watch them. No package that we need contains its header, so they are
// declared here as documented by NVIDIA (https://docs.nvidia.com/deploy/nvml-api).
#pragma once

namespace trainctl::nvml {

using Device = struct OpaqueDevice*;
inline constexpr int kSuccess = 0;
inline constexpr int kMultiprocessorClock = 1;  ///< nvmlClockType_t

struct Memory {
  unsigned long long total, free, used;
};

/// Percent of the last second or less in which a kernel ran, and in which memory was read or written.
struct Utilization {
  unsigned gpu, memory;
};

struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

struct Functions {
  int (*init)();
  int (*shutdown)();
  const char* (*error_string)(int);
  int (*driver_cuda_version)(int*);
  int (*count)(unsigned*);
  int (*by_index)(unsigned, Device*);
  int (*name)(Device, char*, unsigned);
  int (*uuid)(Device, char*, unsigned);
  int (*memory)(Device, Memory*);
  int (*pci)(Device, PciInfo*);
  int (*clock_mhz)(Device, int clock, unsigned*);
  int (*most_clock_mhz)(Device, int clock, unsigned*);
  int (*milliwatts)(Device, unsigned*);
  int (*most_milliwatts)(Device, unsigned*);
  int (*utilization)(Device, Utilization*);
};

}  // namespace trainctl::nvml
