// Determines at which step a job resumes from a checkpoint, and whether its samples continue where the checkpoint's
// ended.
#include "engine/train/checkpoint/resume_position.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/train/data/order.h"

namespace trainctl {
namespace {

/// Throws EnvError if dataset.split would move samples that the checkpoint was trained on to the validation.
void require_same_shares(const PlannedJob& job, const Manifest& manifest, const std::string& checkpoint) {
  const DatasetSpec& set = job.spec.dataset;
  if (manifest.step == 0 || !set.has_shares()) return;
  constexpr const char* kMixed = "dataset.split would move training samples to the validation";
  if (manifest.seed != job.spec.seed)
    throw EnvError(fmt::format("{} was trained with seed {}, but the job has seed {}: {}; set seed={}", checkpoint,
                               manifest.seed, job.spec.seed, kMixed, manifest.seed));
  if (manifest.train_share > set.train_share)
    throw EnvError(
        fmt::format("{} was trained on a fraction of {} of the samples, but the job trains on {}: {}; set "
                    "dataset.split.train to {} or more",
                    checkpoint, manifest.train_share, set.train_share, kMixed, manifest.train_share));
}

/// Throws EnvError if a checkpoint within an epoch was trained in another order of samples: its steps have used the
/// first samples of that order, so the rest of the epoch must follow it.
void require_same_order(const PlannedJob& job, const Manifest& manifest, const std::string& checkpoint) {
  const DatasetSpec& set = job.spec.dataset;
  if (manifest.step == 0 || (manifest.epoch_step == 0 && !set.has_mixture())) return;
  const std::string order = order_text(set, job.data, job.spec.seed, manifest.step);
  // Checkpoints of earlier versions have only the seed.
  const bool is_same =
      manifest.order.empty() ? manifest.seed == job.spec.seed || !set.shuffle : manifest.order == order;
  if (is_same) return;
  if (set.has_mixture())
    throw EnvError(fmt::format(
        "{} ends after step {} of {}, but by then the job has {}: the run would train on some samples of the sources "
        "twice and on others not at all; to change a mixture, keep dataset.mix and add a change from step "
        "{} on to dataset.mix_schedule",
        checkpoint, manifest.step, manifest.order, order, manifest.step));
  const std::string before =
      manifest.order.empty() ? fmt::format("samples shuffled by seed {}", manifest.seed) : manifest.order;
  throw EnvError(
      fmt::format("{} ends within epoch {}, whose order is {}, but the job has {}: the epoch would train on some "
                  "samples twice and on others not at all; resume with the seed and the data set of that run, or "
                  "from a checkpoint at the end of an epoch",
                  checkpoint, manifest.epoch, before, order));
}

}  // namespace

void require_untrained_samples(const PlannedJob& job, const Manifest& manifest, const std::string& checkpoint) {
  if (job.validation && job.validation->set.takes_validation_share) require_same_shares(job, manifest, checkpoint);
}

TrainPosition position_after(const PlannedJob& job, const Manifest& manifest, const std::string& checkpoint) {
  const int64_t batch = job.spec.dataset.batch, per_epoch = steps_per_epoch(job.spec.dataset, job.data.samples);
  const int64_t epochs = manifest.epoch - 1;
  require_same_shares(job, manifest, checkpoint);
  require_same_order(job, manifest, checkpoint);
  TrainPosition from;
  from.step = epochs * per_epoch;
  if (manifest.epoch_step > 0) {
    const int64_t samples = manifest.epoch_step * (manifest.step == 0 ? batch : manifest.samples / manifest.step);
    if (samples % batch != 0 || samples / batch >= per_epoch)
      throw EnvError(
          fmt::format("{} ends after {} samples of epoch {}, which is not a whole number of steps with dataset.batch "
                      "{}; use the batch of that run, or a checkpoint at the end of an epoch",
                      checkpoint, samples, manifest.epoch, batch));
    from.step += samples / batch;
  }
  const int64_t last = total_steps(job.spec.train, per_epoch);
  if (from.step > last)
    throw EnvError(fmt::format("{} is from step {}, but the job ends after {}; increase train.epochs or train.steps",
                               checkpoint, from.step, last));
  const bool same_metrics = manifest.epoch_metric_sums.size() == num_metrics(job);
  if (manifest.epoch_step > 0 && same_metrics) {
    // The means of the epoch continue; a step with another batch size counts by its number of samples.
    from.epoch.loss = manifest.epoch_loss_sum;
    std::copy(manifest.epoch_metric_sums.begin(), manifest.epoch_metric_sums.end(), from.epoch.metrics.begin());
    from.epoch.count = manifest.epoch_step;
  }
  from.is_finite = manifest.is_finite;
  from.validation.run_step = from.step;
  from.validation.values = manifest.metrics;
  if (manifest.plateau) from.validation.plateau = *manifest.plateau;
  if (manifest.loss_scale) from.loss_scale = *manifest.loss_scale;
  for (const std::string& metric : job.spec.reported_metrics()) {
    const auto known =
        std::find_if(manifest.best.begin(), manifest.best.end(), [&](const auto& b) { return b.first == metric; });
    from.validation.best.emplace_back(metric, known == manifest.best.end() ? BestValue{} : known->second);
  }
  return from;
}

}  // namespace trainctl
