// Compares the optimizer of a job, and the length of its schedule, with the stored job of an earlier run.
#include "cli/run/saves/resumed_optimizer.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/planning/run_length.h"
#include "engine/spec/job_fields.h"
#include "engine/spec/parse.h"
#include "engine/spec/replicas.h"
#include "engine/spec/schedule.h"
#include "engine/train/files/input_file.h"

namespace trainctl {
namespace {

constexpr const char* kLocalRate = "parallel.outer.local_rate";

/// The value in the job of a run. Versions that did not store the chosen factor did not change the learning rate.
std::string stored_value(const std::string& field, const std::string& text) {
  return field == kLocalRate && text == "0.0" ? "1.0" : text;
}

}  // namespace

JobSpec with_chosen_rate(JobSpec spec) {
  if (spec.parallel.local_steps > 0 && num_replicas(spec) > 0) spec.parallel.outer.local_rate = local_rate_of(spec);
  return spec;
}

std::string optimizer_changes(const JobSpec& spec, const std::string& stored_job) {
  if (!std::filesystem::exists(stored_job)) return "";
  std::map<std::string, std::string> stored;
  try {
    for (const auto& [field, value] : job_fields(read_whole_file(stored_job), stored_job))
      stored[field] = stored_value(field, value);
  } catch (const std::runtime_error&) {
    return "";  // not a job
  }
  const auto steps = stored.find("parallel.local_steps");
  const bool both_local = spec.parallel.local_steps > 0 && steps != stored.end() && steps->second != "0";
  if (both_local) stored.try_emplace(kLocalRate, "1.0");
  std::vector<std::string> changes;
  for (const auto& [field, value] : job_fields(to_yaml(with_chosen_rate(spec)), "job")) {
    if (!field.starts_with("optimizer.") && !(both_local && field.starts_with("parallel.outer."))) continue;
    const auto before = stored.find(field);
    if (before != stored.end() && before->second != value)
      changes.push_back(fmt::format("{}: {} (it was {})", field, value, before->second));
  }
  if (changes.empty()) return "";
  return fmt::format("the optimizer is not that of the run in {}: {}; set these fields to continue as before",
                     std::filesystem::path(stored_job).parent_path().string(), join(changes));
}

std::string schedule_change(const PlannedJob& job, const std::string& stored_job, int64_t step) {
  if (!std::filesystem::exists(stored_job)) return "";
  TrainSpec stored;
  try {
    stored = load_run_job(stored_job).train;
  } catch (const std::runtime_error&) {
    return "";  // not a job
  }
  const int64_t of_epoch = steps_per_epoch(job.spec.dataset, job.data.samples);
  const int64_t before = total_steps(stored, of_epoch), now = total_steps(job.spec.train, of_epoch);
  const ScheduleSpec& schedule = job.spec.optimizer.learning_rate;
  const double rate = learning_rate(schedule, step, now), expected = learning_rate(schedule, step, before);
  if (step >= now || before == now || rate == expected) return "";
  const char* const field = schedule.segments.empty() ? "total_steps" : "steps of the last segment";
  return fmt::format(
      "the learning rate follows a schedule of {} steps, and of {} in the run in {}: step {} has the "
      "rate {:.3g}, not {:.3g}; set the {} of optimizer.learning_rate to continue as before",
      now, before, std::filesystem::path(stored_job).parent_path().string(), step + 1, rate, expected, field);
}

}  // namespace trainctl
