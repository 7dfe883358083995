// See the header.
#include "engine/train/job.h"

#include <utility>

#include "engine/train/data/dataset.h"
#include "engine/train/data/order.h"

namespace trainctl {

SpecError with_positions(const SpecError& error, const JobSpec& spec) {
  std::vector<Diagnostic> diagnostics = error.diagnostics();
  for (Diagnostic& diagnostic : diagnostics) {
    if (!diagnostic.pos.known()) diagnostic.pos = spec.position(diagnostic.path);
  }
  return SpecError(std::move(diagnostics));
}

PlannedJob plan_job(JobSpec spec) {
  PlannedJob job;
  job.spec = std::move(spec);
  job.cost = job.spec.launch.device == Device::cuda ? CostModel::cuda(job.spec.precision) : CostModel::cpu();
  try {
    job.shapes = read_data_shapes(job.spec.dataset);
    check_epoch_has_steps(job.spec.dataset, read_data_size(job.spec.dataset));
  } catch (const SpecError& error) {
    throw with_positions(error, job.spec);
  }
  job.graph = build_graph(job.spec, job.shapes);
  job.plan = make_plan(job.graph, job.spec, job.cost);
  return job;
}

void require_precision(const JobSpec& spec) {
  if (spec.precision != Precision::bf16 || spec.launch.device == Device::cuda) return;
  throw EnvError("precision is bf16, but CPU ranks compute in fp32; set precision: fp32, or launch.device: cuda");
}

Program compile(const PlannedJob& job, int rank) { return compile(job.graph, job.plan, job.spec, job.cost, rank); }

std::vector<Program> compile_all(const PlannedJob& job) { return compile_all(job.graph, job.plan, job.spec, job.cost); }

}  // namespace trainctl
