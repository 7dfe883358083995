// See the header.
#include "cli/run/launch/job_report.h"

#include "cli/run/launch/losses.h"
#include "cli/text/launch_report.h"
#include "engine/base/error.h"
#include "engine/compile/report/report.h"
#include "engine/estimate/estimate_report.h"
#include "engine/planning/compile_job.h"
#include "engine/search/search_report.h"
#include "engine/train/checkpoint/checkpoint_report.h"
#include "engine/train/data/sample_check.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

/// Reserves memory for the validation in `classes`.
Json validation_json(const PlannedJob& job, RankClasses& classes) {
  const RankClasses programs = compile_validation_classes(job);
  make_room_for(programs, classes);
  Json json = {{"samples", job.validation->data.samples}, {"batch", job.validation->set.batch}};
  json["rank_classes"] = validation_rows(programs);
  return json;
}

void add_estimate(const PlannedJob& job, JobReport& report) {
  if (job.plan.is_asynchronous()) report.single_worker = compile_unverified(job.graph, job.plan, job.cost);
  report.step = job.compiled ? job.compiled->step : simulate(report.simulated(), job.cost.machine());
  check(report.step->ends, "the simulation of verified programs terminates");
  report.json["estimate"] = estimate_report(report.simulated(), job.cost.machine(), *report.step);
}

}  // namespace

JobReport report_of(const PlannedJob& job, bool estimate) {
  require_sound_samples(job);
  JobReport report;
  report.classes = compile_classes(job);
  Json validation;
  if (job.validation) validation = validation_json(job, report.classes);
  report.json = plan_report(job.spec, job.graph, job.plan, report.classes);
  if (!job.tables.empty()) report.json["tables"] = tables_json(job.tables, job.spec.optimizer);
  if (job.validation) report.json["validation"] = std::move(validation);
  if (job.spec.train.saves_state())
    report.json["checkpoint"] = checkpoint_report(job);
  else if (job.spec.train.saves())
    report.json["final_weights"] = final_weights_report(job, report.classes.programs);
  if (job.search) report.json["search"] = search_report(*job.search);
  if (estimate || job.spec.launch.machine != "auto" || job.search) add_estimate(job, report);
  report.json["launch"] = launch_report(job.spec, report.classes);
  if (Json losses = losses_report(job); !losses.is_null()) report.json["launch"]["losses"] = std::move(losses);
  return report;
}

}  // namespace trainctl
