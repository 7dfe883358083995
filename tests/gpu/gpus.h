// GPU tests are built everywhere and say so where they cannot run.
#pragma once

#include <cstdio>
#include <string>

#include "engine/runtime/cuda/devices.h"

namespace trainctl {

inline const CudaDevices& gpus() {
  static const CudaDevices devices = find_cuda_devices();
  return devices;
}

inline int num_gpus() { return static_cast<int>(gpus().list.size()); }

/// Whether there are `needed` GPUs. If not, prints what is skipped: a test that then returns has checked nothing.
inline bool have_gpus(int needed, const std::string& test) {
  if (num_gpus() >= needed) return true;
  const std::string why =
      num_gpus() == 0 ? "no GPU: " + gpus().why_none : "it needs " + std::to_string(needed) + " GPUs";
  std::printf("skipped: %s (%s)\n", test.c_str(), why.c_str());
  return false;
}

}  // namespace trainctl
