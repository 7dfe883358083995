// Selects the GPU of a rank whose launcher runs on another host and does not know this host's GPUs.
#include "cli/run/worker/take_gpu.h"

#include <fmt/format.h>

#include <cstdlib>

#include "engine/base/error.h"
#include "engine/runtime/cuda/devices.h"

namespace trainctl {

int take_gpu(int number) {
  const CudaDevices found = find_cuda_devices();
  const auto have = static_cast<int>(found.list.size());
  if (number >= have)
    throw EnvError(
        fmt::format("launch.device is cuda and this host has at least {} ranks, so it needs as many GPUs; {}\n  "
                    "assign fewer ranks to the host in launch.hosts, or set launch.device: cpu",
                    number + 1, have == 0 ? "it has none: " + found.why_none : fmt::format("it has only {}", have)));
  const CudaDevice& gpu = found.list[static_cast<size_t>(number)];
  setenv("CUDA_VISIBLE_DEVICES", gpu.uuid.c_str(), 1);
  return gpu.index;
}

}  // namespace trainctl
