// A job in which every stage has the same number of blocks less: its stages are as uneven as those of the whole job, so
// what a step takes falls by that number times what a block takes.
#pragma once

#include <vector>

#include "engine/search/networks.h"

namespace trainctl {

/// By layer of the job's network: the virtual stage that assign_stages would give it; -1: it has no nodes.
std::vector<int> expected_stages(const Network& network, const JobSpec& job, const Repeats& repeats,
                                 const CostModel& cost, int virtual_stages);

/// Blocks that can be left out of each virtual stage, so that one of them is left with `least`, all of them whole; 0 or
/// less: none. Blocks of two runs take different times, so only a network of one run has such blocks.
int blocks_to_leave_out(const Repeats& repeats, const std::vector<int>& stage_of_layer, int virtual_stages, int least);

/// The job with `left_out` blocks fewer in each virtual stage. Its stage_config names the stage of each layer.
JobSpec with_fewer_blocks(const JobSpec& job, const Repeats& repeats, const std::vector<int>& stage_of_layer,
                          int virtual_stages, int left_out);

}  // namespace trainctl
