// The errors of a search in which no plan is legal, or none fits into memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/search/find_plan.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// No plan is legal with the settings that the job fixes.
class NoLegalPlan : public SpecError {
 public:
  using SpecError::SpecError;
};

class NoPlanFits : public SpecError {
 public:
  /// `limit`: bytes per rank; `needed`: bytes of the smallest plan, which is named `plan`; `tried`: all plans that the
  /// search has tried.
  NoPlanFits(const JobSpec& job, int64_t limit, int64_t needed, std::string plan, std::vector<TriedPlan> tried = {});

  int64_t needed() const { return needed_; }
  const std::string& plan() const { return plan_; }
  const std::vector<TriedPlan>& tried() const { return tried_; }

 private:
  int64_t needed_;
  std::string plan_;
  std::vector<TriedPlan> tried_;
};

}  // namespace trainctl
