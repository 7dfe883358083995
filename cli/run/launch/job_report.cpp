// The report of a planned job: what `trainctl plan --json` prints, and plan.json in the folder of a run.
#include "cli/run/launch/job_report.h"

#include "cli/run/launch/headline.h"
#include "cli/run/launch/lost_hosts.h"
#include "cli/text/launch_report.h"
#include "engine/base/error.h"
#include "engine/compile/report/report.h"
#include "engine/estimate/estimate_report.h"
#include "engine/planning/compile_job.h"
#include "engine/planning/run_length.h"
#include "engine/search/search_report.h"
#include "engine/spec/fields.h"
#include "engine/spec/schedule.h"
#include "engine/train/checkpoint/checkpoint_report.h"
#include "engine/train/data/sample_check.h"
#include "engine/train/data/sample_notes.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

Json validation_json(const PlannedJob& job, const RankClasses& programs, const PlannedTexts* texts) {
  Json json = {{"samples", job.validation->data.samples},
               {"batch", job.validation->set.batch},
               {"rank_classes", validation_rows(programs)}};
  if (texts != nullptr)
    json["texts"] = {{"prompts", texts->request.prompts.size()},
                     {"positions", texts->job.generation->size.positions},
                     {"at_a_time", texts->job.generation->size.rows}};
  return json;
}

/// The curve of a rate that changes; null: it is constant, or the job does not train.
Json rate_json(const PlannedJob& job) {
  const ScheduleSpec& rate = job.spec.optimizer.learning_rate;
  const int64_t steps = total_steps(job.spec.train, steps_per_epoch(job.spec.dataset, job.data.samples));
  if (!job.graph.trains() || steps < 1 || steps > static_cast<int64_t>(kMaxSteps)) return nullptr;
  constexpr int kColumns = 60;
  const std::string curve = rate_curve(rate, steps, kColumns);
  if (curve.empty()) return nullptr;
  return {{"steps", steps},    {"first", learning_rate(rate, 0, steps)},
          {"base", rate.base}, {"last", learning_rate(rate, steps - 1, steps)},
          {"curve", curve},    {"outlived", outlived_schedule(rate, steps)}};
}

}  // namespace

std::optional<JobEstimate> estimate_of(const PlannedJob& job, const RankClasses& classes, bool always) {
  if (!always && job.spec.launch.machine == "auto" && !job.search) return std::nullopt;
  JobEstimate estimate;
  if (job.plan.is_asynchronous()) estimate.single_worker = compile_unverified(job.graph, job.plan, job.cost);
  estimate.step = job.compiled ? job.compiled->step : simulate(estimate.simulated(classes), job.cost.machine());
  check(estimate.step.ends, "the simulation of verified programs terminates");
  return estimate;
}

Json job_json(const PlannedJob& job, const RankClasses& classes, const RankClasses* validation,
              const PlannedTexts* texts, const JobEstimate* estimate) {
  Json json = plan_report(job.spec, job.graph, job.plan, classes);
  if (!job.tables.empty()) json["tables"] = tables_json(job.tables, job.spec.optimizer);
  if (validation != nullptr) json["validation"] = validation_json(job, *validation, texts);
  if (job.spec.train.saves_state())
    json["checkpoint"] = checkpoint_report(job);
  else if (job.spec.train.saves())
    json["final_weights"] = final_weights_report(job, classes.programs);
  if (job.search) json["search"] = search_report(*job.search);
  if (estimate != nullptr)
    json["estimate"] = estimate_report(estimate->simulated(classes), job.cost.machine(), estimate->step);
  if (Json rate = rate_json(job); !rate.is_null()) json["learning_rate"] = std::move(rate);
  json["launch"] = launch_report(job.spec, classes);
  if (Json losses = lost_hosts_report(job); !losses.is_null()) json["launch"]["losses"] = std::move(losses);
  for (std::string& note : notes_on_samples(job)) json["notes"].push_back(std::move(note));
  json["headline"] = headline_json(job, classes, json);
  return json;
}

JobReport report_of(const PlannedJob& job, bool estimate) {
  require_sound_samples(job);
  JobReport report;
  report.classes = compile_classes(job);
  std::optional<RankClasses> validation;
  if (job.validation) {
    validation = compile_validation_classes(job);
    make_room_for(*validation, report.classes);
  }
  const std::optional<PlannedTexts> texts = plan_texts(job);
  if (texts) make_room_for(*texts, report.classes);
  report.estimate = estimate_of(job, report.classes, estimate);
  report.json = job_json(job, report.classes, validation ? &*validation : nullptr, texts ? &*texts : nullptr,
                         report.estimate ? &*report.estimate : nullptr);
  return report;
}

}  // namespace trainctl
