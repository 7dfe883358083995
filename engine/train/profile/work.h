// The work of an instruction, in numbers that become rates when divided by a time.
#pragma once

#include <string>

#include "engine/compile/program.h"
#include "engine/ops/op_def.h"
#include "engine/runtime/timeline.h"

namespace trainctl {

/// Operations and memory traffic of an instruction that runs a kernel (kernel_cost), loads or prints.
Cost kernel_work(const Instruction& instruction);

/// The work of all instructions in the span's launch, and their names: "layer1, layer2, loss".
Cost work_of(const Program& program, const TimeSpan& span);
std::string name_of(const Program& program, const TimeSpan& span);

/// Bus bandwidth is this times bytes / time, as defined by nccl-tests: what each rank must move over its link
/// for the call. all_reduce 2 (p-1) / p; all_gather, reduce_scatter and all_to_all (p-1) / p; broadcast 1.
/// `bytes` is the larger of one rank's input and output.
double bus_factor(Collective kind, int group_size);

}  // namespace trainctl
