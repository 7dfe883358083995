// The switch of the kernels for small steps (docs/small_step.md), TRAINCTL_SMALL_STEP in a rank's environment.
#include "engine/ops/small_step/small_step.h"

#include <cstdlib>
#include <string_view>

#include "engine/base/error.h"

namespace trainctl {
namespace {

bool is_on(std::string_view kind) {
  const char* set = std::getenv("TRAINCTL_SMALL_STEP");
  const std::string_view value = set == nullptr ? "on" : set;
  if (value != "on" && value != "off" && value != "launches" && value != "products")
    throw EnvError("TRAINCTL_SMALL_STEP is '" + std::string(value) +
                   "'; expected on (the default), off, launches or products");
  return value == "on" || value == kind;
}

}  // namespace

bool small_step_launches() { return is_on("launches"); }
bool small_step_products() { return is_on("products"); }

}  // namespace trainctl
