// For tests that require a common launch, so that they get one even with TRAINCTL_SMALL_STEP=off.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace trainctl {

/// Turns the kernels for small steps on as long as this object exists.
class SmallStepOn {
 public:
  SmallStepOn() {
    if (const char* set = std::getenv(kName)) before_ = set;
    setenv(kName, "on", 1);
  }
  SmallStepOn(const SmallStepOn&) = delete;
  SmallStepOn& operator=(const SmallStepOn&) = delete;
  ~SmallStepOn() {
    if (before_) {
      setenv(kName, before_->c_str(), 1);
    } else {
      unsetenv(kName);
    }
  }

 private:
  static constexpr const char* kName = "TRAINCTL_SMALL_STEP";
  std::optional<std::string> before_;
};

}  // namespace trainctl
