// The NVIDIA GPUs of this host, as the driver's management library (NVML) lists them.
#include "engine/runtime/cuda/devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>

#include "engine/base/dynamic_library.h"
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/runtime/cuda/nvml.h"

namespace trainctl {
namespace {

/// NVML comes with the driver: if it is missing, advice on library paths would not help.
DynamicLibrary open_driver() {
  try {
    return DynamicLibrary("the NVIDIA driver's management library", {"libnvidia-ml.so.1"});
  } catch (const EnvError&) {
    throw EnvError("no NVIDIA driver was found (libnvidia-ml.so.1)");
  }
}

/// Opens the management library of the driver, and looks up the functions of nvml.h.
nvml::Functions open_nvml() {
  const DynamicLibrary file = open_driver();
  nvml::Functions f{};
  file.bind(f.init, "nvmlInit_v2");
  file.bind(f.shutdown, "nvmlShutdown");
  file.bind(f.error_string, "nvmlErrorString");
  file.bind(f.driver_cuda_version, "nvmlSystemGetCudaDriverVersion_v2");
  file.bind(f.count, "nvmlDeviceGetCount_v2");
  file.bind(f.by_index, "nvmlDeviceGetHandleByIndex_v2");
  file.bind(f.name, "nvmlDeviceGetName");
  file.bind(f.uuid, "nvmlDeviceGetUUID");
  file.bind(f.memory, "nvmlDeviceGetMemoryInfo");
  file.bind(f.pci, "nvmlDeviceGetPciInfo_v3");
  file.bind(f.clock_mhz, "nvmlDeviceGetClockInfo");
  file.bind(f.most_clock_mhz, "nvmlDeviceGetMaxClockInfo");
  file.bind(f.milliwatts, "nvmlDeviceGetPowerUsage");
  file.bind(f.most_milliwatts, "nvmlDeviceGetEnforcedPowerLimit");
  file.bind(f.utilization, "nvmlDeviceGetUtilizationRates");
  return f;
}

/// The NUMA node of a GPU. The bus id "00000000:1B:00.0" of NVML is 0000:1b:00.0 in /sys.
int numa_node_of(const std::string& bus_id) {
  const std::string path = lower_case(bus_id.size() > 12 ? bus_id.substr(bus_id.size() - 12) : bus_id);
  std::ifstream file("/sys/bus/pci/devices/" + path + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

}  // namespace

class Nvml {
 public:
  Nvml() : f_(open_nvml()) { check(f_.init(), "nvmlInit"); }
  ~Nvml() { f_.shutdown(); }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  int driver_cuda_version() const {
    int version = 0;
    check(f_.driver_cuda_version(&version), "nvmlSystemGetCudaDriverVersion");
    return version;
  }

  std::vector<CudaDevice> devices() const {
    unsigned count = 0;
    check(f_.count(&count), "nvmlDeviceGetCount");
    std::vector<CudaDevice> list;
    for (unsigned i = 0; i < count; ++i) list.push_back(device(i));
    return list;
  }

  std::optional<CudaLoad> load(int index) const {
    nvml::Device handle = nullptr;
    unsigned clock = 0, most_clock = 0, power = 0, most_power = 0;
    nvml::Utilization busy{};
    nvml::Memory memory{};
    if (f_.by_index(static_cast<unsigned>(index), &handle) != nvml::kSuccess ||
        f_.clock_mhz(handle, nvml::kMultiprocessorClock, &clock) != nvml::kSuccess ||
        f_.most_clock_mhz(handle, nvml::kMultiprocessorClock, &most_clock) != nvml::kSuccess ||
        f_.milliwatts(handle, &power) != nvml::kSuccess || f_.most_milliwatts(handle, &most_power) != nvml::kSuccess ||
        f_.memory(handle, &memory) != nvml::kSuccess)
      return std::nullopt;
    f_.utilization(handle, &busy);  // not reported by a GPU that is divided into instances (MIG)
    return CudaLoad{static_cast<double>(clock),
                    static_cast<double>(most_clock),
                    power / 1e3,
                    most_power / 1e3,
                    busy.gpu / 1e2,
                    static_cast<int64_t>(memory.used),
                    static_cast<int64_t>(memory.total)};
  }

 private:
  CudaDevice device(unsigned index) const {
    nvml::Device handle = nullptr;
    check(f_.by_index(index, &handle), "nvmlDeviceGetHandleByIndex");
    char name[128] = {}, uuid[128] = {};
    nvml::Memory memory{};
    nvml::PciInfo pci{};
    check(f_.name(handle, name, sizeof(name)), "nvmlDeviceGetName");
    check(f_.uuid(handle, uuid, sizeof(uuid)), "nvmlDeviceGetUUID");
    check(f_.memory(handle, &memory), "nvmlDeviceGetMemoryInfo");
    CudaDevice device{name, uuid, static_cast<int64_t>(memory.total), static_cast<int64_t>(memory.free)};
    device.index = static_cast<int>(index);
    if (f_.pci(handle, &pci) == nvml::kSuccess) device.numa_node = numa_node_of(pci.bus_id);
    return device;
  }

  void check(int status, const char* what) const {
    if (status != nvml::kSuccess) throw EnvError(fmt::format("{}: {}", what, f_.error_string(status)));
  }

  nvml::Functions f_;
};

CudaMonitor::CudaMonitor() : nvml_(std::make_shared<const Nvml>()) {}

std::optional<CudaLoad> CudaMonitor::load(int index) const { return nvml_->load(index); }

namespace {

std::string as_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

/// The device that a part of CUDA_VISIBLE_DEVICES names; null: none.
const CudaDevice* named(const std::vector<CudaDevice>& all, const std::string& part) {
  if (part.empty()) return nullptr;
  if (std::all_of(part.begin(), part.end(), [](unsigned char c) { return std::isdigit(c) != 0; })) {
    const size_t index = part.size() > 6 ? all.size() : std::stoul(part);
    return index < all.size() ? &all[index] : nullptr;
  }
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const CudaDevice& d) { return d.uuid.starts_with(part); });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

std::vector<CudaDevice> visible_devices(const std::vector<CudaDevice>& all, const char* variable) {
  if (variable == nullptr) return all;
  std::vector<CudaDevice> visible;
  std::string part;
  for (const char* c = variable;; ++c) {
    if (*c != ',' && *c != '\0') {
      if (*c != ' ') part += *c;
      continue;
    }
    const CudaDevice* device = named(all, part);
    if (device == nullptr) return visible;
    const bool again =
        std::any_of(visible.begin(), visible.end(), [&](const CudaDevice& d) { return d.uuid == device->uuid; });
    if (again) return {};  // a device that is named twice: CUDA then shows no devices
    visible.push_back(*device);
    part.clear();
    if (*c == '\0') return visible;
  }
}

CudaDevices find_cuda_devices() {
  CudaDevices found;
  const std::optional<int> built_with = cuda_version_of_build();
  if (!built_with) {
    found.why_none = "this trainctl was built without CUDA";
    return found;
  }
  try {
    const Nvml nvml;
    const int driver = nvml.driver_cuda_version();
    if (driver / 1000 < *built_with / 1000) {
      found.why_none =
          fmt::format("the NVIDIA driver supports CUDA {}, but this trainctl needs {}; install a newer driver",
                      as_text(driver), as_text(*built_with));
      return found;
    }
    const std::vector<CudaDevice> all = nvml.devices();
    const char* variable = std::getenv("CUDA_VISIBLE_DEVICES");
    found.list = visible_devices(all, variable);
    if (all.empty())
      found.why_none = "the NVIDIA driver finds no GPU";
    else if (found.list.empty())
      found.why_none = fmt::format("CUDA_VISIBLE_DEVICES={} hides all {} GPUs", variable, all.size());
  } catch (const EnvError& error) {
    found.why_none = error.what();
  }
  return found;
}

}  // namespace trainctl
