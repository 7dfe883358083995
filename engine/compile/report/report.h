// The report of `trainctl plan` as data, read from the plan and from the same programs that will run.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/compile/program.h"
#include "engine/compile/rank_classes.h"
#include "engine/plan/plan.h"

namespace trainctl {

/// The whole report; docs/planning.md lists its fields.
nlohmann::ordered_json plan_report(const JobSpec& spec, const Graph& graph, const Plan& plan,
                                   const RankClasses& classes);

/// The programs that evaluate the validation set, and the memory that they use in addition to the variables of the
/// training.
nlohmann::ordered_json validation_rows(const RankClasses& validation);

/// One collective, send or recv as printed by the report and by `run --record`.
nlohmann::ordered_json communication_json(const Instruction& instruction, const Program& program);

}  // namespace trainctl
