// See the header.
#include "engine/ops/small_step/small_step.h"

#include <cstdlib>
#include <string_view>

#include "engine/base/error.h"

namespace trainctl {

bool small_step_kernels() {
  const char* set = std::getenv("TRAINCTL_SMALL_STEP");
  const std::string_view value = set == nullptr ? "on" : set;
  if (value != "on" && value != "off")
    throw EnvError("TRAINCTL_SMALL_STEP is '" + std::string(value) + "'; expected on (the default) or off");
  return value == "on";
}

}  // namespace trainctl
