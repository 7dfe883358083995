// Leaves the same number of blocks out of every stage of a job. The stages remain as uneven as those of the whole job,
// so the time of a step falls by that number times the time of a block.
#pragma once

#include <vector>

#include "engine/search/networks.h"

namespace trainctl {

/// Returns for each layer of the job's network the virtual stage that assign_stages would give it; -1: it has no nodes.
std::vector<int> expected_stages(const SearchNetwork& network, const JobSpec& job, const Repeats& repeats,
                                 const CostModel& cost, int virtual_stages);

/// Returns the number of blocks that can be left out of each virtual stage so that every stage keeps at least `least`
/// whole blocks; 0 or less: none. Only for networks with one run of equal blocks, since blocks of two runs take
/// different times.
int blocks_to_leave_out(const Repeats& repeats, const std::vector<int>& stage_of_layer, int virtual_stages, int least);

/// The job with `left_out` blocks fewer in each virtual stage. Its stage_config names the stage of each layer.
JobSpec with_fewer_blocks(const JobSpec& job, const Repeats& repeats, const std::vector<int>& stage_of_layer,
                          int virtual_stages, int left_out);

}  // namespace trainctl
