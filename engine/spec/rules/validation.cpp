// Rules about validation and metrics.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/text.h"
#include "engine/spec/batch_transforms.h"
#include "engine/spec/fields.h"
#include "engine/spec/rules/rules.h"

namespace trainctl::rules {

void metrics_have_classes(RuleContext& r) {
  if (r.job.metrics.empty() || !r.fine({"metrics", "loss"})) return;
  const MetricSpec& first = r.job.metrics.front();
  if (!r.job.loss)
    r.wrong("metrics", first.type + " needs a loss, because it compares the prediction of the loss with its labels",
            "e.g. loss: softmax_cross_entropy");
  else if (!find_type(loss_types(), r.job.loss->type)->labels_are_classes)
    r.wrong("metrics", first.type + " needs class labels, but the labels of " + r.job.loss->type + " are numbers",
            "use loss: softmax_cross_entropy for classes");
  else if (has_soft_labels(r.job.dataset))
    r.wrong("metrics", first.type + " needs class labels, but one_hot turns them into class probabilities",
            "remove the metric; validation still reports the loss");
  for (size_t i = 0; i < r.job.metrics.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (r.job.metrics[i].type == r.job.metrics[j].type && r.job.metrics[i].attrs == r.job.metrics[j].attrs)
        r.wrong(r.job.metrics[i].path, "is the same metric as " + r.job.metrics[j].path);
}

namespace {

void validation_names_sources(RuleContext& r) {
  const DatasetSpec& set = r.job.validation->dataset;
  if (!r.job.dataset.is_mix()) {
    if (!set.source_paths.empty())
      r.wrong("validation.dataset.sources", "is for a mixture, but dataset.type is " + r.job.dataset.type,
              "set validation.dataset.path");
    return;
  }
  if (!set.paths.empty())
    r.wrong("validation.dataset.path", "a mixture has several sources",
            "validation: {dataset: {sources: {" + r.job.dataset.sources.front().name + ": PATH}}}");
  for (const auto& [name, paths] : set.source_paths)
    if (!has_source_called(r.job.dataset, name))
      r.wrong("validation.dataset.sources." + name, "there is no source '" + name + "'",
              did_you_mean(name, source_names(r.job.dataset)));
}

}  // namespace

void validation_data_suits_the_dataset(RuleContext& r) {
  if (!r.job.validation || !r.fine({"validation", "dataset.type"})) return;
  const ValidationSpec& validation = *r.job.validation;
  const DatasetSpec& set = validation.dataset;
  if (r.fine({"dataset"})) validation_names_sources(r);
  if (r.job.dataset.is_mix()) {
    if (!r.job.loss) r.wrong("validation", "a validation needs a loss", "e.g. loss: softmax_cross_entropy");
    for (const char* field : {"split", "samples"})
      if (r.job.positions.contains(std::string("validation.dataset.") + field))
        r.wrong(std::string("validation.dataset.") + field, "cannot be used for a mixture",
                "set it in dataset.sources, or name files in validation.dataset.sources");
    return;
  }
  const std::string& type = r.job.dataset.type;
  const bool has_files = type != "random" && type != "constant" && type != "clicks" && type != "shapes";
  if (!r.job.loss) r.wrong("validation", "a validation needs a loss", "e.g. loss: softmax_cross_entropy");
  if (!set.paths.empty() && !has_files)
    r.wrong("validation.dataset.path", "a " + type + " data set has no files", "set validation.dataset.samples");
  if (is_one_folder(r.job.dataset) && set.paths.size() > 1 && set.labels)
    r.wrong("validation.dataset.path",
            "a " + type + " data set is one folder, not " + number(static_cast<int64_t>(set.paths.size())));
  if (!set.split.empty() && !r.job.dataset.has_file_splits())
    r.wrong("validation.dataset.split",
            "split is only for the types mnist, cifar10 and cifar100, but dataset.type is " + type,
            "set validation.dataset.path, or dataset.split: {train: 0.9, validation: 0.1}");
  if (set.samples > 0 && has_files)
    r.wrong("validation.dataset.samples",
            "samples is only for the types random, constant, clicks and shapes, but dataset.type is " + type);
}

/// Plans that text generation does not support are errors of plan_generation().
void validation_can_generate_texts(RuleContext& r) {
  if (!r.job.validation || !r.job.validation->generate) return;
  if (!r.fine({"validation", "dataset.type", "parallel.mode", "launch.hosts", "launch.hostfile", "launch.target",
               "launch.slurm.nodes", "launch.kubernetes.pods"}))
    return;
  const LaunchSpec& launch = r.job.launch;
  const std::string field = "validation.generate", remedy = "remove it, and use `trainctl generate` on a checkpoint";
  if (launch.has_hosts() || (launch.target != Target::hosts && managed_hosts(launch) > 1))
    r.wrong(field, "is not supported on several hosts", remedy);
  if (r.job.parallel.mode == ParallelMode::parameter_server)
    r.wrong(field, "is not supported in parameter_server mode", remedy);
  if (!r.job.dataset.has_tokens() && r.job.dataset.type != "preference")
    r.wrong(field, "needs a data set of tokens, but dataset.type is " + r.job.dataset.type,
            "remove it, or use tokens, text, chat or preference");
}

/// A validation on the training samples would not detect overfitting. If the job names them explicitly, it is only a
/// warning (warnings.cpp).
void validation_has_its_own_samples(RuleContext& r) {
  if (!r.job.validation || !r.fine({"validation", "dataset.type", "dataset.split"})) return;
  const DatasetSpec& training = r.job.dataset;
  const DatasetSpec& set = r.job.validation->dataset;
  if (training.is_mix()) {
    const bool has_shares = std::any_of(training.sources.begin(), training.sources.end(),
                                        [](const DatasetSpec& source) { return source.validation_share > 0; });
    if (set.source_paths.empty() && !has_shares)
      r.wrong("validation", "must have its own samples; otherwise it would evaluate the training samples",
              "name held-out files of the sources in validation.dataset.sources");
    return;
  }
  const bool is_made = training.type == "random" || training.type == "constant" || training.type == "clicks" ||
                       training.type == "shapes";
  if (!training.labels || is_made || training.has_shares() || !set.paths.empty() || !set.split.empty()) return;
  r.wrong("validation", "must have its own samples; otherwise it would evaluate the training samples",
          training.has_file_splits() ? "validation: {dataset: {split: test}}"
          : training.has_source()    ? "set validation.dataset.path, or dataset.split: {train: 0.9, validation: 0.1}"
                                     : "set validation.dataset.path to text that is not used for training");
}

void metric_is_known(RuleContext& r, const std::string& path, const std::string& name, bool of_validation) {
  std::vector<std::string> all = r.job.reported_metrics();
  if (!of_validation) {
    all = r.job.metric_names();
    all.insert(all.begin(), "loss");
  }
  if (std::find(all.begin(), all.end(), name) != all.end()) return;
  const std::string guess = did_you_mean(name, all);
  r.wrong(path, "there is no metric '" + name + "'" + (of_validation ? " of validation" : " in this job"),
          guess.empty() ? "available: " + join(all) + "; add others to the job's `metrics`" : guess);
}

void metrics_of_validation_exist(RuleContext& r) {
  if (!r.fine({"metrics", "validation", "train"})) return;
  const auto need = [&](const std::string& path, const std::string& metric) {
    if (r.job.validation) return metric_is_known(r, path, metric, true);
    r.wrong(path, "there is no validation to report '" + metric + "'", "add validation: {dataset: ...}");
  };
  if (r.job.validation)
    for (size_t i = 0; i < r.job.validation->metrics.size(); ++i)
      metric_is_known(r, "validation.metrics[" + std::to_string(i) + "]", r.job.validation->metrics[i], false);
  const TrainSpec& train = r.job.train;
  if (train.checkpoint && !train.checkpoint->keep_best.empty())
    need("train.checkpoint.keep_best", train.checkpoint->keep_best);
  if (!train.stop_when) return;
  need("train.stop_when.metric", train.stop_when->metric);
  if (!train.stop_when->reaches && train.stop_when->patience == 0)
    r.wrong("train.stop_when", "needs 'reaches' or 'patience'", "e.g. {metric: accuracy, reaches: 0.97}");
}

}  // namespace trainctl::rules
