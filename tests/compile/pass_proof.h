// Proves each pass of the compiler separately, so that a fault names the pass that caused it.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "engine/compile/compile.h"

namespace trainctl {

struct PassFault {
  std::string pass;  ///< the first pass after which something does not hold
  std::string text;  ///< the fault, and where
};

/// Runs the passes of `list` on all ranks together, and proves after each of them:
///  - every operand is inside its buffer;
///  - with every buffer at a separate place, one stream, and waits for sends at the end if order_sends has not run yet,
///    the programs pass verify_programs, independently of later passes;
///  - communication is in the same order as before, unless the pass is one that may move it;
///  - from order_sends on, each send is waited for;
///  - with only the remaining required passes, the programs pass verify_programs too.
/// Empty if all hold.
std::optional<PassFault> first_pass_fault(const Graph& graph, const Plan& plan, const CostModel& cost,
                                          std::span<const Pass> list = passes());

}  // namespace trainctl
