// Compares the optimizer of a job with that of the run whose checkpoint it resumes. Defaults may have changed since,
// and a run must not continue with another optimizer unnoticed.
#pragma once

#include <string>

#include "engine/planning/planned_job.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// Returns `spec` in the form in which a run stores it: with the factor of the learning rate that
/// parallel.outer.local_rate: 0 has chosen.
JobSpec with_chosen_rate(JobSpec spec);

/// Names the fields of the optimizer and of the outer optimizer of local steps that differ from the stored job of a
/// run; "" if none does, or if there is no such file.
std::string optimizer_changes(const JobSpec& spec, const std::string& stored_job);

/// Reports that the learning rate of `step`, the next one, follows a schedule of another length than in the stored job
/// of a run, because the schedule spans all steps of a run; "" if it does not, or if there is no such file.
std::string schedule_change(const PlannedJob& job, const std::string& stored_job, int64_t step);

}  // namespace trainctl
