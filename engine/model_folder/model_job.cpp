// Writes the job file for the model of a folder: one text for all families of models, filled in with what the family
// states (ModelJob).
#include "engine/model_folder/model_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "engine/base/text.h"

namespace trainctl {
namespace {

constexpr std::string_view kHead = R"(# A trainctl job for the {title} model in {from}, made by `trainctl init --from`.
#
#   trainctl check FILE       validate it, and compare names and shapes of the weights
#   trainctl plan  FILE       show how it would run
#   trainctl run   FILE       train it
#   trainctl checkpoint export latest --map auto -o DIR      write a model folder again
#
# Every field is described in docs/job.md, and model folders in docs/weights.md.
)";

constexpr std::string_view kTokens = R"(
dataset:
  type: random                     # for real text: {type: tokens, path: "data/*.bin", length: "${length}"}
  shape: ["${length}"]
  dtype: i32
  label_shape: ["${length}"]
  label_dtype: i32
  classes: "${vocab}"
  batch: 8
)";

constexpr std::string_view kTexts = R"(
dataset:
  type: random                     # for real text, use a data set with token ids of this tokenizer: docs/data.md
  shape: ["${length}"]
  dtype: i32
  classes: "${vocab}"              # token ids
  label_dtype: i32
  batch: 8
)";

constexpr std::string_view kImages = R"(
dataset:
  type: random                     # for real images: {type: image_folder, path: "images"}, see docs/data.md
  shape: ["${channels}", "${image}", "${image}"]
  label_dtype: i32
  classes: "${classes}"
  batch: 8
)";

std::string_view dataset_text(ModelInput input) {
  if (input == ModelInput::next_token) return kTokens;
  return input == ModelInput::text_class ? kTexts : kImages;
}

constexpr std::string_view kOptimizer = R"(
loss: softmax_cross_entropy
optimizer:
  type: adamw
  learning_rate: {type: cosine, base: 0.00002, warmup_steps: 50}
  betas: [0.9, 0.95]
  weight_decay: 0.01
  clip_norm: 1.0
)";

std::string training_text(const ModelJob& job) {
  std::string text(kOptimizer);
  if (!job.no_decay.empty())
    text += "  groups:\n    - {parameters: " + quoted_list(job.no_decay) + ", weight_decay: 0}\n";
  return text + "\ntrain: {steps: 1000, log_every: 10, checkpoint: auto}\n";
}

std::string vars_text(const ModelJob& job) {
  std::vector<std::string> vars;
  for (const auto& [name, value] : job.vars) vars.push_back(name + ": " + value);
  return "vars: {" + join(vars) + "}\n";
}

/// CPU ranks compute in fp32 only, and on a GPU a small model gains little from bf16.
constexpr int64_t kSmallModel = 20'000'000;

/// The number of parameters, estimated from the variables that most families have.
int64_t estimated_parameters(const ModelJob& job) {
  const auto value_of = [&](std::string_view wanted) {
    int64_t value = 0;
    for (const auto& [name, text] : job.vars)
      if (name == wanted) std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  };
  const int64_t d = value_of("d");
  return d * value_of("vocab") + value_of("layers") * d * (4 * d + 3 * std::max(value_of("hidden"), d));
}

std::string_view precision_text(const ModelJob& job) {
  if (estimated_parameters(job) < kSmallModel)
    return "precision: fp32                    # CPUs compute in fp32 only; bf16 is faster on GPUs\n\n";
  return "precision: bf16                    # weights and activations; masters, sums and statistics stay f32\n\n";
}

std::string weights_text(const ModelJob& job, const std::string& from) {
  std::string text =
      "\nweights:                           # a new run starts from these; --resume from its checkpoints\n";
  text += "  from: " + from + "\n  map: auto                        # the names in those files: ";
  text += job.map + ", by model_type in config.json\n";
  if (job.has_new_head)
    text += "  partial: true                    # layers that the files lack are new and start with random weights\n";
  return text;
}

std::string modules_text(const ModelJob& job) {
  std::string text = "\nmodules:\n";
  for (const ModelModule& module : job.modules) {
    text += "  " + module.name + ":\n";
    if (!module.args.empty()) text += "    args: {" + join(module.args) + "}\n    layers:\n";
    const std::string indent = module.args.empty() ? "    " : "      ";
    for (const std::string& line : module.layers) text += indent + "- " + line + "\n";
  }
  text += "\nnetwork:\n";
  for (const std::string& line : job.network) text += "  - " + line + "\n";
  return text;
}

}  // namespace

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"' || text[i] == '\\') result += '\\';
    if (text[i] == '$' && text.compare(i, 2, "${") == 0) result += '$';
    result += text[i];
  }
  return result + "\"";
}

std::string quoted_list(const std::vector<std::string>& patterns) {
  std::vector<std::string> all;
  for (const std::string& pattern : patterns) all.push_back("'" + pattern + "'");
  return "[" + join(all) + "]";
}

LayerLine::LayerLine(std::string_view name, std::string_view type) {
  if (!name.empty()) text_ = fmt::format("name: {}, ", name);
  text_ += fmt::format("type: {}", type);
}

LayerLine& LayerLine::with(std::string_view key, std::string_view value) {
  const bool is_expression = value.starts_with("${");
  text_ += is_expression ? fmt::format(", {}: \"{}\"", key, value) : fmt::format(", {}: {}", key, value);
  return *this;
}

LayerLine& LayerLine::with(std::string_view key, int64_t value) { return with(key, std::to_string(value)); }
LayerLine& LayerLine::with(std::string_view key, double value) { return with(key, fmt::format("{}", value)); }

LayerLine& LayerLine::with(std::string_view key, const std::vector<double>& values) {
  std::vector<std::string> texts;
  for (const double value : values) texts.push_back(fmt::format("{}", value));
  return with(key, "[" + join(texts) + "]");
}

LayerLine& LayerLine::with_fields(const std::string& fields) {
  text_ += fields;
  return *this;
}

std::string job_text(const ModelJob& job, const Finetune& tuning, const std::string& from, const std::string& name) {
  const bool tunes = tuning.task != FinetuneTask::none;
  std::string text(kHead);
  text.replace(text.find("{title}"), 7, job.title);
  text.replace(text.find("{from}"), 6, from);
  text += "name: " + name + "\nseed: 1\n";
  text += precision_text(job);
  text += vars_text(job);
  text += weights_text(job, quoted(from));
  text += tunes ? finetune_data_text(job, tuning, quoted(from)) : std::string(dataset_text(job.input));
  text += modules_text(job);
  text += tunes ? finetune_training_text(job, tuning) : training_text(job);
  text += "\nparallel:\n  mode: semi_auto_parallel\n";
  if (!job.recompute.empty())
    text += "  recompute: " + quoted_list(job.recompute) + "     # cheap to recompute, and large\n";
  text += "\nlaunch: {ranks: 1}\n";
  return text;
}

}  // namespace trainctl
