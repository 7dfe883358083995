// Computes how many steps a job has.
#pragma once

#include <cstdint>

#include "engine/planning/data_header.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// Steps per epoch over `samples` samples; at most kCapped (base/checked.h), since the requested number may not fit an
/// int64_t.
int64_t steps_per_epoch(const DatasetSpec& spec, int64_t samples);

/// Steps of the whole run: train.epochs * steps_per_epoch, or train.steps, whichever is less.
int64_t total_steps(const TrainSpec& spec, int64_t steps_per_epoch);

/// Throws SpecError if an epoch over `samples` samples is shorter than one step (dataset.batch).
void require_epoch(const DatasetSpec& spec, int64_t samples);

/// Throws SpecError if the run has more steps than its counters can hold.
void require_countable_steps(const JobSpec& spec, int64_t samples);

/// Throws SpecError if the sources of a mixture have reached their max_epochs before the run ends, or if its shares are
/// by tokens and a source has none.
void require_enough_samples(const JobSpec& spec, const DataHeader& data);

/// Steps that are started on the device before the host waits for the oldest one.
int steps_in_flight(const TrainSpec& spec);

}  // namespace trainctl
