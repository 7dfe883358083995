// The NVIDIA GPUs of this host, as the driver's management library (NVML) lists them. Asking starts nothing on the
// GPUs, so the launcher can do it: CUDA's own start-up takes seconds where there are eight.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trainctl {

struct CudaDevice {
  std::string name;  ///< "NVIDIA H200"
  std::string uuid;  ///< "GPU-…", which CUDA_VISIBLE_DEVICES takes
  int64_t total_bytes = 0, free_bytes = 0;
  int numa_node = -1;  ///< -1: not known
  int index = 0;       ///< the host's number of it
};

struct CudaDevices {
  std::vector<CudaDevice> list;  ///< those that CUDA_VISIBLE_DEVICES leaves, in its order
  std::string why_none;          ///< where the list is empty: "this trainctl was built without CUDA"
};

/// Loads the management library, not CUDA.
CudaDevices find_cuda_devices();

/// What CUDA_VISIBLE_DEVICES leaves of `all`: indices or beginnings of uuids, up to the first that names none of
/// them or one that was named before. Null: all.
std::vector<CudaDevice> visible_devices(const std::vector<CudaDevice>& all, const char* variable);

/// The CUDA that this trainctl was built with: 13000 for 13.0; nothing where it was built without.
std::optional<int> cuda_version_of_build();

}  // namespace trainctl
