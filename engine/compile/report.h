// What `trainctl plan` says, as data: read off the plan and the very programs that will run.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/compile/program.h"
#include "engine/compile/rank_classes.h"
#include "engine/plan/plan.h"

namespace trainctl {

/// The whole report; its fields are listed in docs/planning.md.
nlohmann::ordered_json plan_report(const JobSpec& spec, const Graph& graph, const Plan& plan,
                                   const RankClasses& classes);

/// One collective, send or recv as the report and `run --record` state it.
nlohmann::ordered_json communication_json(const Instruction& instruction, const Program& program);

/// Whether an instruction moves bytes between ranks.
bool communicates(const Instruction& instruction);

}  // namespace trainctl
