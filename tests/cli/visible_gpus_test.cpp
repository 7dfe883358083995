// The GPUs that a rank's process sees.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "cli/run/worker/take_gpu.h"
#include "engine/base/error.h"

using namespace trainctl;

namespace {

std::vector<CudaDevice> gpus(const std::vector<std::string>& names) {
  std::vector<CudaDevice> all;
  for (const std::string& name : names) {
    CudaDevice gpu;
    gpu.name = name;
    gpu.uuid = "GPU-" + std::to_string(all.size());
    gpu.index = static_cast<int>(all.size());
    all.push_back(gpu);
  }
  return all;
}

}  // namespace

TEST_CASE("a rank sees its own GPU alone, and with audits also two of the same model that replay its steps") {
  const std::vector<CudaDevice> three = gpus({"H200", "H200", "H200"}), mixed = gpus({"H200", "L4", "H200"});
  CHECK(visible_gpus(three, 1, false) == "GPU-1");
  CHECK(visible_gpus(three, 1, true) == "GPU-1,GPU-2,GPU-0");
  CHECK(visible_gpus(gpus({"H200", "H200"}), 1, true) == "GPU-1,GPU-0");
  CHECK(visible_gpus(mixed, 0, true) == "GPU-0,GPU-2");
  CHECK_THROWS_WITH_AS(visible_gpus(mixed, 1, true), doctest::Contains("this host has only one L4"), EnvError);
}
