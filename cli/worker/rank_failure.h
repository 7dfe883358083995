// Turns what a rank throws into its error.json, with the step and the instruction at which it was.
#pragma once

#include <string>

#include "engine/compile/program.h"
#include "engine/runtime/comm/shared_memory.h"
#include "launcher/rank_error.h"
#include "launcher/supervision.h"

namespace trainctl {

/// The exception in flight, to be called in a catch block. `status` and `program` may be null: not there yet.
RankError current_rank_error(const RankStatus* status, const Program* program);

/// "step 412, all_reduce grad.0 (instruction 881)"; "loading" and the like before the first step.
std::string describe_position(const RankStatus& status, const Program& program);

/// The same for the launcher, which wants to see it move.
RankProgress progress_of(const RankStatus& status, const Program& program);

}  // namespace trainctl
