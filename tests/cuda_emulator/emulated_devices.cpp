// Replaces the query of the driver's management library: lists the emulated GPU.
#include "engine/runtime/cuda/devices.h"
#include "tools/cuda_emulator/device_limits.h"

namespace trainctl {

CudaDevices find_cuda_devices() {
  CudaDevices found;
  found.list.push_back({"emulated H200", "GPU-emulated", static_cast<int64_t>(emulator::kMemory),
                        static_cast<int64_t>(emulator::kMemory)});
  return found;
}

}  // namespace trainctl
