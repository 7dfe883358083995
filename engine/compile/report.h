// What `trainctl plan` says, as data: read off the plan and the very programs that will run.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "engine/compile/program.h"
#include "engine/plan/plan.h"

namespace trainctl {

/// The whole report; its fields are listed in docs/planning.md. Programs of all ranks, in rank order.
nlohmann::ordered_json plan_report(const JobSpec& spec, const Graph& graph, const Plan& plan,
                                   const std::vector<Program>& programs);

/// One collective, send or recv as the report and `run --record` state it.
nlohmann::ordered_json communication_json(const Instruction& instruction, const Program& program);

/// Whether an instruction moves bytes between ranks.
bool communicates(const Instruction& instruction);

}  // namespace trainctl
