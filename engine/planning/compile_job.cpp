// Runs compile, compile_all and compile_classes of engine/compile on a planned job, and adds the device memory that the
// programs need (Memory).
#include "engine/planning/compile_job.h"

#include <algorithm>

#include "engine/compile/compile.h"
#include "engine/compile/one_per_stage.h"
#include "engine/compile/verify/verify_programs.h"
#include "engine/model/evaluation.h"
#include "engine/ops/optimizer_def.h"
#include "engine/planning/device_memory.h"

namespace trainctl {
namespace {

Program compile_process(const PlannedJob& job, const Graph& graph, int rank, const EvaluationOf* of = nullptr) {
  Program program = compile(graph, job.plan, job.cost, rank_of_program(job.plan, rank), of);
  return of_process(std::move(program), job.plan, rank);
}

RankClasses with_device_memory(const PlannedJob& job, RankClasses classes) {
  for (Program& program : classes.programs) program = with_device_memory(job, std::move(program));
  return classes;
}

}  // namespace

Program compile(const PlannedJob& job, int rank) {
  return with_device_memory(job, compile_process(job, job.graph, rank));
}

Program compile_validation(const PlannedJob& job, int rank, bool beside_training) {
  const EvaluationOf of{job.graph, beside_training};
  return with_evaluation_memory(job, compile_process(job, job.validation->graph, rank, &of));
}

RankClasses compile_validation_classes(const PlannedJob& job, bool beside_training) {
  const EvaluationOf of{job.graph, beside_training};
  RankClasses classes = compile_classes(job.validation->graph, job.plan, job.cost, &of);
  for (Program& program : classes.programs) program = with_evaluation_memory(job, std::move(program));
  return classes;
}

bool validates_averages(const PlannedJob& job) {
  const OptimizerSpec& spec = job.spec.optimizer;
  if (!job.validation || job.graph.updates.empty()) return false;
  const std::vector<std::string> states = Optimizer(spec.type, spec.attrs).states();
  return spec.average || job.plan.has_replicas() ||
         std::find(states.begin(), states.end(), kAverageSlot) != states.end();
}

Program compile_exchange(const PlannedJob& job, int rank) {
  const EvaluationOf of{.trained = job.graph, .only = EvaluationOf::Only::exchange};
  return with_evaluation_memory(job, compile_process(job, job.validation->graph, rank, &of));
}

RankClasses compile_exchange_classes(const PlannedJob& job) {
  const EvaluationOf of{.trained = job.graph, .only = EvaluationOf::Only::exchange};
  RankClasses classes = compile_classes(job.validation->graph, job.plan, job.cost, &of);
  for (Program& program : classes.programs) program = with_evaluation_memory(job, std::move(program));
  return classes;
}

Program compile_synchronization(const PlannedJob& job, int rank) {
  const EvaluationOf of{.trained = job.graph, .only = EvaluationOf::Only::synchronize};
  return with_evaluation_memory(job, compile_process(job, evaluation_graph(job.graph), rank, &of));
}

RankClasses compile_synchronization_classes(const PlannedJob& job) {
  const EvaluationOf of{.trained = job.graph, .only = EvaluationOf::Only::synchronize};
  RankClasses classes = compile_classes(evaluation_graph(job.graph), job.plan, job.cost, &of);
  for (Program& program : classes.programs) program = with_evaluation_memory(job, std::move(program));
  return classes;
}

int64_t room_for(const Memory& validation, const Memory& training) {
  return std::max<int64_t>(validation.arena() - training.arena(), 0) + validation.workspace;
}

void make_room_for(const RankClasses& validation, RankClasses& training) {
  for (size_t c = 0; c < training.programs.size(); ++c) {
    Memory& memory = training.programs[c].memory;
    for (const int rank : training.ranks[c])
      memory.validation = std::max(memory.validation, room_for(validation.program_of(rank).memory, memory));
  }
}

std::vector<Program> compile_all(const PlannedJob& job) {
  if (job.plan.is_asynchronous() || job.plan.has_replicas()) {
    std::vector<Program> programs;
    for (int rank = 0; rank < job.spec.processes(); ++rank) programs.push_back(compile(job, rank));
    return programs;
  }
  std::vector<Program> programs = compile_all(job.graph, job.plan, job.cost);
  for (Program& program : programs) program = with_device_memory(job, std::move(program));
  return programs;
}

RankClasses compile_classes(const PlannedJob& job) {
  if (job.compiled) {
    RankClasses classes = job.compiled->classes;
    require_verified(classes);
    return classes;
  }
  return with_device_memory(job, compile_classes(job.graph, job.plan, job.cost));
}

RankClasses compile_unverified(const PlannedJob& job) {
  return with_device_memory(job, compile_unverified(job.graph, job.plan, job.cost));
}

RankClasses compile_one_per_stage(const PlannedJob& job) {
  return with_device_memory(job, compile_one_per_stage(job.graph, job.plan, job.cost));
}

int64_t most_memory(const RankClasses& classes) {
  int64_t most = 0;
  for (const Program& program : classes.programs) most = std::max(most, program.memory.total());
  return most;
}

int64_t memory_limit(const PlannedJob& job) {
  if (job.spec.parallel.max_memory > 0) return job.spec.parallel.max_memory;
  const Machine& machine = job.cost.machine();
  const bool may_send = job.spec.launch.ranks > 1;
  return machine.kind == DeviceKind::cuda
             ? static_cast<int64_t>((machine.memory - machine.reserved_memory(may_send, may_send)).value)
             : 0;
}

}  // namespace trainctl
