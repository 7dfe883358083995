// trainctl evaluate: runs the job's validation set with the weights of a checkpoint, under the job's plan, and reports
// how good the predictions are.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/commands/commands.h"
#include "cli/commands/evaluation_run.h"
#include "cli/commands/job_arguments.h"
#include "cli/errors.h"
#include "cli/render/quality_tables.h"
#include "cli/render/terminal.h"
#include "engine/base/error.h"
#include "engine/ops/prediction_kind.h"
#include "engine/train/data/dataset.h"
#include "engine/train/data/thumbnail.h"
#include "engine/train/files/input_file.h"
#include "engine/train/trainer/answers.h"
#include "engine/train/trainer/prediction.h"
#include "engine/train/trainer/quality.h"

namespace trainctl {
namespace {

struct EvaluateArguments {
  JobArguments job;
  std::string checkpoint;
  bool json = false;
};

/// Validation sets with more samples than this get no per-sample quality report.
constexpr int64_t kMostSamples = int64_t{1} << 26;

/// Returns whether each sample of the validation has a single label, so that its prediction can be compared with it.
bool has_single_labels(const JobSpec& spec) {
  const DatasetSpec set = spec.validation_set();
  if (set.has_tokens() || set.type == "preference") return false;
  const DataHeader header = read_data_header(set, spec.seed);
  const DataField* label = header.shapes.find("label");
  return label != nullptr && label->shape.size() <= 1 && header.samples <= kMostSamples;
}

/// Writes pictures of the worst samples to the folder of evaluation.json, for the report.
void draw_worst(const Dataset& samples, const RunDirectory& directory, Quality& quality) {
  for (size_t i = 0; i < quality.worst.size(); ++i) {
    std::string name = fmt::format("worst.{}.png", i + 1);
    if (!write_thumbnail(samples, quality.worst[i].sample, directory.file(name))) return;
    quality.worst[i].image = std::move(name);
  }
}

/// Compares predictions with labels. Returns nullopt if the network does not give one prediction per sample, or if none
/// were written.
std::optional<Quality> compare(const JobSpec& spec, const std::string& checkpoint, const std::string& prediction,
                               const RunDirectory& directory) {
  if (prediction.empty() || !std::filesystem::exists(prediction)) return std::nullopt;
  std::optional<Quality> quality;
  try {
    Answers answers(spec, spec.validation_set(), prediction, class_names_of(checkpoint, spec));
    quality = quality_of(answers);
    draw_worst(answers.samples(), directory, *quality);
  } catch (const SpecError&) {
  }
  return quality;
}

/// Returns whether the loss is the mean of -log p over tokens.
bool has_perplexity(const JobSpec& spec, const nlohmann::ordered_json& report) {
  return spec.validation_set().has_tokens() && prediction_kind(spec.loss->type) == PredictionKind::class_logits &&
         report.contains("loss") && report["loss"].is_number();
}

/// Adds the measures to evaluation.json, and returns them as text.
std::string add_quality(const RunDirectory& directory, const JobSpec& spec, const std::optional<Quality>& quality,
                        size_t width) {
  auto report = nlohmann::ordered_json::parse(read_whole_file(directory.file("evaluation.json")));
  std::string text;
  if (quality) {
    report.update(to_json(*quality));
    text = quality_text(*quality, width);
  }
  if (has_perplexity(spec, report)) {
    const double perplexity = std::exp(report["loss"].get<double>());
    report["perplexity"] = perplexity;
    text += fmt::format("perplexity {:.4f}\n", perplexity);
  }
  directory.write("evaluation.json",
                  report.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  return text;
}

int evaluate(const EvaluateArguments& options) {
  std::optional<QuietStdout> quiet;
  if (options.json) quiet.emplace();
  const JobSpec spec = options.job.load();
  require_possible(spec, {.evaluate = EvaluateOptions{.checkpoint = "?"}});
  EvaluateOptions evaluated{.checkpoint = find_evaluated(options.checkpoint, spec)};
  if (!spec.launch.has_hosts() && has_single_labels(spec)) {
    evaluated.layer = answer_layer(spec);
    evaluated.output = prediction_file(spec);
    evaluated.has_loss = true;
  }
  const EvaluationEnd ended = run_evaluation(spec, evaluated);
  quiet.reset();
  std::optional<Quality> quality;
  if (ended.code == kExitDone) quality = compare(spec, evaluated.checkpoint, evaluated.output, ended.directory);
  std::error_code ignored;
  if (!evaluated.output.empty()) std::filesystem::remove(evaluated.output, ignored);
  if (ended.code != kExitDone) return ended.code;
  const std::string text = add_quality(ended.directory, spec, quality, output_width(STDOUT_FILENO));
  std::cout << (options.json ? read_whole_file(ended.directory.file("evaluation.json")) : text) << std::flush;
  return ended.code;
}

}  // namespace

void add_evaluate_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<EvaluateArguments>();
  auto* command = app.add_subcommand("evaluate", "Compute loss, metrics and errors of the validation set");
  options->job.add_to(*command);
  add_checkpoint_option(*command, options->checkpoint);
  command->add_flag("--json", options->json, "Print the results as JSON; other output goes to stderr");
  command->footer(
      R"(Runs only the forward pass: batch_norm uses its running statistics, and dropout is off. Each sample of the job's
validation.dataset counts exactly once, under any plan. For classes the command prints precision, recall and F1 of each
class, the confusion matrix and the area under the ROC curve; for numbers the mean absolute error and R2; for tokens the
perplexity. Logs and evaluation.json, with the same results, are written to log_output/evaluations/<number>.

Examples:
  trainctl evaluate job.yaml                                   the job's newest run
  trainctl evaluate job.yaml --checkpoint best                 its checkpoint with the best validation
  trainctl evaluate job.yaml --checkpoint 3                    newest checkpoint of run 3
  trainctl evaluate job.yaml --checkpoint log_output/3/checkpoints/step_00000630 launch.ranks=2
  trainctl evaluate job.yaml --checkpoint 3 validation.dataset.split=test --json)");
  command->callback([&chosen, options] { chosen = [options] { return evaluate(*options); }; });
}

}  // namespace trainctl
