// The task that a job of `trainctl init --from` trains the model of a folder for, and the sections that depend on it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace trainctl {

/// `none` is a job without --finetune.
enum class FinetuneTask : uint8_t { none, chat, text, dpo, classifier };

/// The tasks by name, as --finetune takes them.
const std::map<std::string, FinetuneTask>& finetune_tasks();

class ModelConfig;

struct Finetune {
  FinetuneTask task = FinetuneTask::none;
  std::string data;        ///< the data set, as the job names it
  std::string validation;  ///< the validation data set, likewise; empty: none, or a part of the images
  int64_t classes = 0;     ///< classifier: their number; 0: as many as config.json has

  /// The job trains adapters of a decoder, whose rows may contain several texts.
  bool trains_adapters() const { return task != FinetuneTask::none && !is_classifier(); }
  bool is_classifier() const { return task == FinetuneTask::classifier; }
  /// Dropout of attention's weights in the job: that of the model. Training on preferences has none, because it
  /// compares the model with its start.
  double attention_dropout(const ModelConfig& config) const;
};

struct ModelJob;

/// The sections dataset, validation and metrics. `from`: the model folder, quoted.
std::string finetune_data_text(const ModelJob& job, const Finetune& tuning, const std::string& from);
/// The sections loss, adapters, optimizer and train.
std::string finetune_training_text(const ModelJob& job, const Finetune& tuning);
/// Throws SpecError if the model cannot be trained for this task. `type`: model_type.
void require_task(const ModelJob& job, const Finetune& tuning, const std::string& type);

}  // namespace trainctl
