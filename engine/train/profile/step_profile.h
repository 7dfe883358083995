// Records when the instructions of a few steps ran: the Timeline that `trainctl run --profile` gives the executor.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/compile/program.h"
#include "engine/runtime/timeline.h"

namespace trainctl {

/// Steps of the run, counted from 1, both ends included.
struct ProfileSteps {
  int64_t first = 3, last = 5;
  int64_t count() const { return last - first + 1; }
};

/// "3-5" or "4". Throws SpecError at the option --profile-steps.
ProfileSteps parse_profile_steps(const std::string& text);
std::string to_string(const ProfileSteps& steps);

/// A record of what one rank did, and when.
struct RankProfile {
  const Program* program = nullptr;
  std::vector<TimeSpan> spans;
};

class StepProfile final : public Timeline {
 public:
  /// Allocates all of its memory here. `program` must outlive it.
  StepProfile(const Program& program, const ProfileSteps& steps);

  bool wants(uint32_t step) override;
  void ran(const TimeSpan& span) override { profile_.spans.push_back(span); }

  const RankProfile& profile() const { return profile_; }
  bool complete() const;

 private:
  const ProfileSteps steps_;
  RankProfile profile_;
};

}  // namespace trainctl
