// A lower bound for the time of a step, which holds for every plan.
#pragma once

#include "engine/search/cuts/cut_search.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// The work that every plan does: products at the machine's best rate, norms and softmaxes that read their input once,
/// an optimizer that reads and writes its state and the weights. Distributed evenly over all ranks, it is the bound.
struct LeastWork {
  double micro_batch_seconds = 0;  ///< seconds of one micro-batch on one rank
  double update_seconds = 0;       ///< seconds of the update on one rank
  double host_seconds = 0;         ///< seconds of a step on the host, which no rank shares
};
LeastWork least_work(const CutNetwork& network, const JobSpec& job, const Machine& machine);

/// No step on these ranks and stages takes less time. If a stage's first task waits for the stages before it, as in
/// gpipe and 1f1b, the start and end of the pipeline count too: stage s of S with T_s seconds of work ends after T_s +
/// (T_0 + … + T_(s-1)) / M at the earliest, and the best shares make all of these equal.
double least_seconds(const LeastWork& work, int ranks, int stages, int micro_batches, Schedule schedule);

}  // namespace trainctl
