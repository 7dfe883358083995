// Ranks of different speeds in one data-parallel job. Each rank runs whole micro-batches of its own; their number is in
// proportion to its speed.
//
//   batch of 12 rows    | 0 1 2 | 3 4 5 | 6 7 8 | 9 10 11 |      micro-batches of 3 rows
//   rank 0, speed 1       run     run     run                    then one all_reduce of the gradients
//   rank 1, speed 0.33                            run
//
// The numbers are those of one rank that runs all of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/planning/planned_job.h"

namespace trainctl {

/// A division of the micro-batches of a step among ranks, in proportion to their speeds.
struct DividedMicroBatches {
  Ints of_ranks;     ///< at least 1 each
  double share = 1;  ///< the time of the slowest rank, relative to that of a perfect division
};

/// The division with the least time, counting a small cost per micro-batch. Each micro-batch has at most `most_rows`
/// rows. Empty if the batch cannot be divided among that number of ranks.
std::optional<DividedMicroBatches> divide_micro_batches(int64_t batch, int64_t most_rows,
                                                        const std::vector<double>& speeds);

/// The smallest number of micro-batches of at most `most_rows` rows that ranks can share evenly; 1 if there is none.
int64_t even_micro_batches(int64_t batch, int64_t most_rows, int64_t ranks);

/// Sets parallel.rank_micro_batches of a data-parallel job whose launch.machine lists machines of different speeds.
/// Returns a note for the plan; empty: nothing was set.
std::string divide_by_speed(JobSpec& spec);

/// Levels 2 and 3 of the optimizer's sharding exchange gradients and weights in every micro-batch, which ranks with
/// different numbers of them cannot do together: such a job gets level 1. Returns a note for the plan; empty: nothing
/// was changed.
std::string exchange_once_per_step(JobSpec& spec);

/// Throws SpecError if ranks with micro-batches of their own would change the results.
void require_independent_micro_batches(const PlannedJob& job);

}  // namespace trainctl
