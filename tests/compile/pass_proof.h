// Proves each pass of the compiler by itself, so that a fault names the pass that made it.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "engine/compile/compile.h"

namespace trainctl {

struct PassFault {
  std::string pass;  ///< the first after which something does not hold
  std::string text;  ///< what, and where
};

/// Runs the passes of `list` on all ranks together, and after each of them proves what they have made so far:
///  - every operand is inside its buffer;
///  - with each buffer at a place of its own, one stream, and waits for sends at the end where order_sends has not run
///    yet, the programs pass verify_programs: no later pass has a part in that;
///  - communication is in the order in which it was, unless the pass is one that moves some;
///  - from order_sends on each send is waited for;
///  - with only the required passes that are left, the programs pass verify_programs too.
/// Nothing where all holds.
std::optional<PassFault> first_pass_fault(const Graph& graph, const Plan& plan, const JobSpec& spec,
                                          const CostModel& cost, std::span<const Pass> list = passes());

}  // namespace trainctl
