// Records when the instructions of a few steps ran: the Timeline that `trainctl run --profile` gives the executor.
#include "engine/train/profile/step_profile.h"

#include <charconv>

#include "engine/base/error.h"

namespace trainctl {
namespace {

constexpr int64_t kMostSteps = 100;

/// The integer that is all of `text`; 0 if it is not a positive one.
int64_t positive(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value > 0 ? value : 0;
}

}  // namespace

ProfileSteps parse_profile_steps(const std::string& text) {
  const size_t dash = text.find('-');
  ProfileSteps steps;
  steps.first = positive(std::string_view(text).substr(0, dash));
  steps.last = dash == std::string::npos ? steps.first : positive(std::string_view(text).substr(dash + 1));
  if (steps.first < 1 || steps.last < steps.first) {
    throw SpecError({}, "--profile-steps", "'" + text + "' is not a valid range of steps; steps are numbered from 1",
                    "e.g. 3-5, or 4 for one step");
  }
  if (steps.count() > kMostSteps) {
    throw SpecError({}, "--profile-steps",
                    text + " are " + std::to_string(steps.count()) + " steps, but a trace can have at most " +
                        std::to_string(kMostSteps),
                    "steps are similar, so 3 are enough");
  }
  return steps;
}

std::string to_string(const ProfileSteps& steps) {
  return std::to_string(steps.first) + (steps.count() > 1 ? "-" + std::to_string(steps.last) : "");
}

StepProfile::StepProfile(const Program& program, const ProfileSteps& steps) : steps_(steps) {
  profile_.program = &program;
  profile_.spans.reserve(program.instructions.size() * static_cast<size_t>(steps.count()));
}

bool StepProfile::wants(uint32_t step) {
  const int64_t number = static_cast<int64_t>(step) + 1;
  return number >= steps_.first && number <= steps_.last;
}

bool StepProfile::complete() const {
  return profile_.spans.size() == profile_.program->instructions.size() * static_cast<size_t>(steps_.count());
}

}  // namespace trainctl
