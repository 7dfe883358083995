// The NVIDIA GPUs of this host, as the driver's management library (NVML) lists them. Listing starts nothing on the
// GPUs, so the launcher can do it: CUDA's own start-up takes seconds with eight GPUs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trainctl {

struct CudaDevice {
  std::string name;  ///< "NVIDIA H200"
  std::string uuid;  ///< "GPU-…", which CUDA_VISIBLE_DEVICES takes
  int64_t total_bytes = 0, free_bytes = 0;
  int numa_node = -1;  ///< -1: unknown
  int index = 0;       ///< the host's index of it
};

struct CudaDevices {
  std::vector<CudaDevice> list;  ///< the devices in CUDA_VISIBLE_DEVICES, in its order
  std::string why_none;          ///< reason for an empty list: "this trainctl was built without CUDA"
};

/// Loads the management library, not CUDA.
CudaDevices find_cuda_devices();

/// Current load of a device, and its limits.
struct CudaLoad {
  double clock_mhz = 0, most_clock_mhz = 0;  ///< clock of the multiprocessors
  double watts = 0, most_watts = 0;
  double busy = 0;                    ///< share of the last second or less in which a kernel ran; 0 if it is not known
  int64_t used_bytes = 0, bytes = 0;  ///< device memory: used by all processes, total
};

/// Watches devices through the management library, without CUDA.
class CudaMonitor {
 public:
  CudaMonitor();  ///< throws EnvError if there is no driver
  /// `index`: CudaDevice::index. Null for a device that does not say.
  std::optional<CudaLoad> load(int index) const;

 private:
  std::shared_ptr<const class Nvml> nvml_;
};

/// The devices of `all` that CUDA_VISIBLE_DEVICES names by index or uuid prefix, up to the first entry that names none
/// or repeats one. Null: all.
std::vector<CudaDevice> visible_devices(const std::vector<CudaDevice>& all, const char* variable);

/// The CUDA version of this build: 13000 for 13.0; nullopt in a build without CUDA.
std::optional<int> cuda_version_of_build();

}  // namespace trainctl
