// Stores the measured choices for the current GPU (kept_choices.h), in one file for each GPU model, driver and version
// of the library.
#include "engine/ops/cuda/device_choices_cuda.h"

#include <cctype>
#include <memory>

#include "engine/base/cache_folder.h"
#include "engine/ops/cuda/launch_cuda.h"

namespace trainctl::cuda {

KeptChoices& choices_of_device(const std::string& what, const std::string& library_version) {
  static std::mutex mutex;
  static auto& files = *new std::map<std::string, std::unique_ptr<KeptChoices>>;
  int device = 0, driver = 0;
  cudaDeviceProp properties{};
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  cuda_check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  std::string name = properties.name;
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  name += "-" + std::to_string(properties.multiProcessorCount) + "-" + std::to_string(driver) + "-" + library_version;
  const std::lock_guard lock(mutex);
  std::unique_ptr<KeptChoices>& file = files[what + "/" + name];
  if (file == nullptr) {
    const std::filesystem::path root = cache_folder();
    file = std::make_unique<KeptChoices>(root.empty() ? root : root / what / name);
  }
  return *file;
}

}  // namespace trainctl::cuda
