// Computes how many steps a job has.
#include "engine/planning/run_length.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/checked.h"
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/planning/mixture.h"
#include "engine/spec/fields.h"

namespace trainctl {

int64_t steps_per_epoch(const DatasetSpec& spec, int64_t samples) {
  if (spec.has_mixture()) return (spec.samples > 0 ? spec.samples : samples) / spec.batch;
  const int64_t all = capped_product(samples, spec.repeat), whole = all / spec.batch;
  return spec.drop_last || all % spec.batch == 0 ? whole : whole + 1;
}

int64_t total_steps(const TrainSpec& spec, int64_t steps_per_epoch) {
  if (spec.epochs == 0) return spec.steps;
  const int64_t all = capped_product(spec.epochs, steps_per_epoch);
  return spec.steps > 0 ? std::min(all, spec.steps) : all;
}

void require_epoch(const DatasetSpec& spec, int64_t samples) {
  check(samples > 0 && spec.batch > 0 && spec.repeat > 0, "set size, batch and repeat must be positive");
  if (steps_per_epoch(spec, samples) > 0) return;
  if (spec.has_mixture())
    throw SpecError(
        {}, "dataset.batch",
        fmt::format("a batch of {} is larger than an epoch of {} samples", spec.batch,
                    with_commas(spec.samples > 0 ? spec.samples : samples)),
        fmt::format("set dataset.samples to at least {}, the samples that the mixture draws in an epoch", spec.batch));
  const int64_t all = samples * spec.repeat;  // less than a batch
  throw SpecError({}, "dataset.batch",
                  fmt::format("a batch of {} is larger than an epoch of {} samples", spec.batch, with_commas(all)),
                  fmt::format("use at most {}, or set dataset.drop_last: false, or increase dataset.repeat", all));
}

void require_countable_steps(const JobSpec& spec, int64_t samples) {
  const int64_t per_epoch = steps_per_epoch(spec.dataset, samples), steps = total_steps(spec.train, per_epoch);
  if (steps <= static_cast<int64_t>(kMaxSteps)) return;
  const bool is_more = std::max(steps, capped_product(samples, spec.dataset.repeat)) == kCapped;
  // The error names the largest factor.
  const int64_t epochs = spec.train.epochs, repeat = spec.dataset.repeat;
  const char* path = epochs >= per_epoch ? "train.epochs" : repeat > samples ? "dataset.repeat" : "dataset.samples";
  throw SpecError(
      {}, path,
      fmt::format("the run would have {}{} steps, {} per epoch; the limit is {}", is_more ? "more than " : "",
                  with_commas(steps), with_commas(per_epoch), with_commas(static_cast<int64_t>(kMaxSteps))),
      "set train.steps to stop earlier");
}

void require_enough_samples(const JobSpec& spec, const DataHeader& data) {
  if (!spec.dataset.has_mixture()) return;
  Mixture mixture(spec.dataset, data.sources);
  bool is_limited = false;
  for (size_t i = 0; i < mixture.size(); ++i) is_limited = is_limited || mixture.limit(i).has_value();
  constexpr int64_t kMostChecked = 20'000'000;  // of longer runs the step itself reports the error
  const int64_t steps = total_steps(spec.train, steps_per_epoch(spec.dataset, data.samples));
  if (is_limited && steps <= kMostChecked) mixture.drawn_before(steps);
}

int steps_in_flight(const TrainSpec& spec) {
  constexpr int64_t kLeast = 2, kMost = 64;
  return static_cast<int>(std::clamp(spec.sink_steps, kLeast, kMost));
}

}  // namespace trainctl
