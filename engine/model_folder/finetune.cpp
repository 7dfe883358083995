// The task that a job of `trainctl init --from` trains the model of a folder for, and the sections that depend on it.
// Language models train adapters; classifiers, which are small, train all weights.
#include "engine/model_folder/finetune.h"

#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/model_folder/model_config.h"
#include "engine/model_folder/model_job.h"

namespace trainctl {
namespace {

std::string documents_text(const Finetune& tuning, const std::string& from) {
  const bool is_chat = tuning.task == FinetuneTask::chat;
  std::string text = "\ndataset:\n";
  text += is_chat ? "  type: chat                       # JSON lines with messages: docs/data.md, Conversations\n"
                  : "  type: text                       # documents: docs/data.md, Texts with a tokenizer\n";
  text += "  path: " + quoted(tuning.data) + "\n  tokenizer: " + from + "\n  length: \"${length}\"\n";
  if (is_chat) text += "  train_on: assistant              # the loss counts only the tokens of the assistant\n";
  text += "  pack: true                       # several documents per row, each computed alone\n";
  return text + "  batch: 8\n  drop_last: false\n";
}

std::string pairs_text(const Finetune& tuning, const std::string& from) {
  return "\ndataset:\n  type: preference                 # JSON lines with prompt, chosen, rejected: docs/data.md, "
         "Preferences\n  path: " +
         quoted(tuning.data) + "\n  tokenizer: " + from +
         "\n  length: \"${length}\"              # of both answers together\n  batch: 8\n  drop_last: false\n";
}

std::string class_texts_text(const Finetune& tuning, const std::string& from) {
  return "\ndataset:\n  type: text                       # JSON lines {\"text\": ..., \"label\": 0}\n  path: " +
         quoted(tuning.data) + "\n  tokenizer: " + from +
         "\n  label_field: label\n  length: \"${length}\"              # longer texts are truncated\n  batch: 32\n"
         "  drop_last: false\n";
}

std::string class_images_text(const ModelJob& job, const Finetune& tuning) {
  std::string text =
      "\ndataset:\n  type: image_folder               # one folder per class\n  path: " + quoted(tuning.data) + "\n";
  if (tuning.validation.empty()) text += "  split: {train: 0.9, validation: 0.1}\n";
  text += "  transforms:\n    - {random_resized_crop: {size: [\"${image}\", \"${image}\"]}}\n    - horizontal_flip\n";
  return text + "    - {normalize: " + job.pixels + "}\n    - hwc2chw\n  batch: 32\n  drop_last: false\n";
}

}  // namespace

const std::map<std::string, FinetuneTask>& finetune_tasks() {
  static const std::map<std::string, FinetuneTask> tasks = {{"chat", FinetuneTask::chat},
                                                            {"text", FinetuneTask::text},
                                                            {"dpo", FinetuneTask::dpo},
                                                            {"classifier", FinetuneTask::classifier}};
  return tasks;
}

double Finetune::attention_dropout(const ModelConfig& config) const {
  const double p = config.attention_dropout();
  return task == FinetuneTask::dpo ? 0 : p;
}

std::string finetune_data_text(const ModelJob& job, const Finetune& tuning, const std::string& from) {
  const bool has_images = job.input == ModelInput::image_class;
  std::string text = tuning.task == FinetuneTask::dpo ? pairs_text(tuning, from)
                     : tuning.trains_adapters()       ? documents_text(tuning, from)
                     : has_images                     ? class_images_text(job, tuning)
                                                      : class_texts_text(tuning, from);
  if (tuning.is_classifier()) text += "\nmetrics: [accuracy]\n";
  if (!tuning.validation.empty())
    text += "\nvalidation: {every_epochs: 1, dataset: {path: " + quoted(tuning.validation) + "}}\n";
  else if (has_images)
    text += "\nvalidation: {every_epochs: 1}\n";
  else
    text += "\n# validation: {every_epochs: 1, dataset: {path: \"held_out.jsonl\"}}\n";
  return text;
}

std::string finetune_training_text(const ModelJob& job, const Finetune& tuning) {
  const bool adapts = tuning.trains_adapters(), has_pairs = tuning.task == FinetuneTask::dpo;
  std::string text = has_pairs ? "\nloss: {type: dpo, beta: 0.1}      # compared with the model without its adapters\n"
                     : adapts  ? "\nloss: {type: softmax_cross_entropy, ignore_index: -100}\n"
                               : "\nloss: softmax_cross_entropy\n";
  if (adapts)
    text +=
        "\nadapters:                          # everything else is frozen; remove this to train all weights\n  lora: "
        "{layers: " +
        quoted_list(job.products) + ", rank: 16, alpha: 32, dropout: 0.05}\n";
  text += fmt::format(
      "\noptimizer:\n  type: adamw\n  learning_rate: {{type: cosine, base: {}, warmup_steps: 20}}\n  betas: [0.9, "
      "0.999]\n  weight_decay: {}\n  clip_norm: 1.0\n",
      has_pairs ? "0.00002"
      : adapts  ? "0.0002"
                : "0.00005",
      adapts ? "0" : "0.01");
  if (!adapts && !job.no_decay.empty())
    text += "  groups:\n    - {parameters: " + quoted_list(job.no_decay) + ", weight_decay: 0}\n";
  const bool validates = !tuning.validation.empty() || job.input == ModelInput::image_class;
  text += "\ntrain:\n  epochs: 3\n  log_every: 10\n  checkpoint: ";
  if (!validates) return text + "auto\n";
  return text + (adapts ? "{keep_best: loss}\n" : "{keep_best: accuracy}\n");
}

void require_task(const ModelJob& job, const Finetune& tuning, const std::string& type) {
  const auto refuse = [&](const std::string& message, const std::string& hint) {
    throw SpecError({}, "init", "--finetune " + message, hint);
  };
  if (tuning.trains_adapters() && !job.is_decoder)
    refuse("chat, text and dpo train a decoder, but the model_type of the folder is " + type,
           "use --finetune classifier");
  if (tuning.is_classifier() && job.input == ModelInput::next_token)
    refuse("classifier trains an encoder (bert, vit), but the model_type of the folder is " + type,
           "use --finetune chat, text or dpo");
}

}  // namespace trainctl
