// A job, planned: what every command starts from. Made the same by every rank on its own.
#pragma once

#include <vector>

#include "engine/base/error.h"
#include "engine/compile/compile.h"
#include "engine/compile/rank_classes.h"
#include "engine/graph/graph.h"
#include "engine/model/model.h"
#include "engine/plan/cost_model.h"
#include "engine/plan/plan.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

struct PlannedJob {
  JobSpec spec;
  DataShapes shapes;
  int64_t samples = 0;  ///< of the data set
  Graph graph;
  Plan plan;
  CostModel cost;
};

/// Reads the headers of the data set, builds the graph and plans it. SpecErrors have their positions.
PlannedJob plan_job(JobSpec spec);

/// Throws an EnvError where the device that the job is to run on cannot compute in its precision.
void require_precision(const JobSpec& spec);

/// Steps that a device is asked to have in flight.
int steps_in_flight(const TrainSpec& spec);

/// compile, compile_all and compile_classes (engine/compile) of a planned job. Where it runs on GPUs, Memory also says what
/// lies beside the arena.
Program compile(const PlannedJob& job, int rank);
std::vector<Program> compile_all(const PlannedJob& job);
RankClasses compile_classes(const PlannedJob& job);

/// The error with a position for each field, where it had none.
SpecError with_positions(const SpecError& error, const JobSpec& spec);

}  // namespace trainctl
