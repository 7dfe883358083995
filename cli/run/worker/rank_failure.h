// Converts a rank's exception to its error.json, with the step and the instruction where it happened.
#pragma once

#include <string>

#include "engine/compile/program.h"
#include "engine/runtime/comm/rank_board.h"
#include "launcher/rank_error.h"
#include "launcher/supervision.h"

namespace trainctl {

/// Converts the current exception; call it in a catch block. `status` and `program` are null if not created yet.
RankError current_rank_error(const RankStatus* status, const Program* program);

/// "step 412, all_reduce grad.0 (instruction 881)"; "loading" and the like before the first step.
std::string describe_position(const RankStatus& status, const Program& program);

/// The same position for the launcher, which watches for changes.
RankProgress progress_of(const RankStatus& status, const Program& program);

}  // namespace trainctl
