// GPU tests are built everywhere and are skipped where they cannot run.
#pragma once

#include <string>

#include "engine/runtime/cuda/devices.h"
#include "tests/skip.h"

namespace trainctl {

inline const CudaDevices& gpus() {
  static const CudaDevices devices = find_cuda_devices();
  return devices;
}

/// True if the GPU is the emulator's, which takes a thousand times longer: tests of many steps take fewer there.
inline bool gpus_are_emulated() { return !gpus().list.empty() && gpus().list[0].uuid == "GPU-emulated"; }

inline int num_gpus() { return static_cast<int>(gpus().list.size()); }

/// True if there are `needed` GPUs. If not, prints what is skipped: a test that then returns has checked nothing.
inline bool have_gpus(int needed) {
  if (num_gpus() >= needed) return true;
  if (num_gpus() == 0)
    skip_test("no GPU: " + gpus().why_none);
  else
    skip_test("needs " + std::to_string(needed) + " GPUs, this machine has " + std::to_string(num_gpus()));
  return false;
}

}  // namespace trainctl
