// For tests that demand a common launch: they get one under TRAINCTL_SMALL_STEP=off too.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace trainctl {

/// The kernels for small steps are on while it exists.
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
