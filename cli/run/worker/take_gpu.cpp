// Selects the GPU of a rank whose launcher runs on another host and does not know this host's GPUs.
#include "cli/run/worker/take_gpu.h"

#include <fmt/format.h>

#include <cstdlib>

#include "engine/base/error.h"

namespace trainctl {

std::string visible_gpus(const std::vector<CudaDevice>& all, size_t own, bool audits) {
  if (!audits) return all[own].uuid;
  constexpr size_t kOthers = 2;
  std::string visible = all[own].uuid;
  size_t others = 0;
  for (size_t i = 1; i < all.size() && others < kOthers; ++i) {
    const CudaDevice& other = all[(own + i) % all.size()];
    if (other.name != all[own].name) continue;  // another model may run other kernels, with other bits
    visible += "," + other.uuid;
    ++others;
  }
  if (others == 0)
    throw EnvError(fmt::format(
        "train.audit_every replays the steps of a GPU on another GPU of its host, and this host has only one {}\n  set "
        "train.audit_every: 0, run on a host with two of them, or set launch.device: cpu",
        all[own].name));
  return visible;
}

int take_gpu(int number, bool audits) {
  const CudaDevices found = find_cuda_devices();
  const auto have = static_cast<int>(found.list.size());
  if (number >= have)
    throw EnvError(
        fmt::format("launch.device is cuda and this host has at least {} ranks, so it needs as many GPUs; {}\n  "
                    "assign fewer ranks to the host in launch.hosts, or set launch.device: cpu",
                    number + 1, have == 0 ? "it has none: " + found.why_none : fmt::format("it has only {}", have)));
  const CudaDevice& gpu = found.list[static_cast<size_t>(number)];
  setenv("CUDA_VISIBLE_DEVICES", visible_gpus(found.list, static_cast<size_t>(number), audits).c_str(), 1);
  return gpu.index;
}

}  // namespace trainctl
