// A planned job: the starting point of every command. Every rank computes the same one on its own.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/base/error.h"
#include "engine/compile/compile.h"
#include "engine/compile/rank_classes.h"
#include "engine/estimate/simulate.h"
#include "engine/graph/graph.h"
#include "engine/model/model.h"
#include "engine/plan/cost_model.h"
#include "engine/plan/plan.h"
#include "engine/search/find_plan.h"
#include "engine/spec/job_spec.h"
#include "engine/train/data/dataset.h"
#include "engine/train/servers/table_plan.h"

namespace trainctl {

/// Samples that are evaluated, beside the training or alone.
struct PlannedEvaluation {
  DatasetSpec set;
  int64_t samples = 0;
  std::vector<SampleField> fields;  ///< see DataHeader
  int64_t host_bytes = 0;           ///< DataHeader::bytes
  Graph graph;  ///< PlannedJob::plan is its plan too
};

struct CompiledTrial {
  Plan plan;
  RankClasses classes;  ///< not verified
  Simulation step;
};

struct PlannedJob {
  JobSpec spec;
  DataShapes shapes;
  int64_t samples = 0;              ///< in the data set
  std::vector<SampleField> fields;  ///< see DataHeader
  int64_t host_bytes = 0;           ///< DataHeader::bytes
  Graph graph;
  Plan plan;
  CostModel cost;
  std::vector<ServedTable> tables;  ///< tables of asynchronous parameter servers; the graph has a window of each
  std::optional<PlannedEvaluation> validation;  ///< evaluation for `validation:`
  /// Result of auto_parallel; `spec` is the job with all of it fixed.
  std::optional<FoundPlan> search;
  /// The search's trial of this very plan; null: compile_classes compiles it.
  std::shared_ptr<const CompiledTrial> compiled;
};

/// Reads the headers of the data set, builds the graph and plans it; searches first in auto_parallel. SpecErrors have
/// positions.
PlannedJob plan_job(JobSpec spec);

/// Throws an EnvError if the job's device cannot compute in its precision.
void require_precision(const JobSpec& spec);

/// Steps that the device is asked to keep in flight.
int steps_in_flight(const TrainSpec& spec);

/// compile, compile_all and compile_classes (engine/compile) of a planned job. For GPUs, Memory also includes what is
/// allocated beside the arena.
Program compile(const PlannedJob& job, int rank);
std::vector<Program> compile_all(const PlannedJob& job);
RankClasses compile_classes(const PlannedJob& job);

/// The program that evaluates the job's validation set. `beside_training`: its arena is that of the training program.
Program compile_validation(const PlannedJob& job, int rank, bool beside_training = true);
RankClasses compile_validation_classes(const PlannedJob& job, bool beside_training = true);

/// Fills in Memory::validation of the training's programs: a validation runs in the same arena.
void make_room_for(const RankClasses& validation, RankClasses& training);
/// The same of one rank.
int64_t room_for(const Memory& validation, const Memory& training);

/// The same error, with a position for each field that had none.
SpecError with_positions(const SpecError& error, const JobSpec& spec);
/// The same for an error of the validation set: a data set's errors name fields of `dataset`, and those that
/// `validation.dataset` has too are its own.
SpecError of_validation(const SpecError& error, const JobSpec& spec);

}  // namespace trainctl
