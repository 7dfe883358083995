// trainctl predict: the answers of a network for samples without labels, or for the validation set, as a table; or the
// output of any layer as an array.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iostream>
#include <memory>
#include <numeric>

#include "cli/commands/commands.h"
#include "cli/commands/evaluation_run.h"
#include "cli/commands/job_arguments.h"
#include "cli/commands/predicted_samples.h"
#include "cli/errors.h"
#include "cli/output_path.h"
#include "cli/text/csv.h"
#include "engine/base/error.h"
#include "engine/base/output_file.h"
#include "engine/base/text.h"
#include "engine/train/trainer/answers.h"
#include "engine/train/trainer/prediction.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

struct PredictOptions {
  JobFile job;
  std::vector<std::string> words;  ///< files and overrides
  std::string checkpoint, layer, output;
  int64_t top = 1;
};

bool is_array_file(const std::string& path) { return path.ends_with(".npy") || path.ends_with(".safetensors"); }

/// Removes the file at the end of its lifetime.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path) : path_(std::move(path)) { remove(); }
  ~TemporaryFile() { remove(); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  void remove() const {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  std::string path_;
};

/// File that the ranks write until it is complete: "out.part.npy".
std::string part_name(const std::string& output) {
  const size_t dot = output.rfind('.');
  return output.substr(0, dot) + ".part" + output.substr(dot);
}

/// Relative to the working directory if it is below it.
std::string short_file(const std::string& path) {
  std::error_code error;
  const std::string folder = fs::current_path(error).string() + "/";
  return !error && path.starts_with(folder) ? path.substr(folder.size()) : path;
}

std::string number(float value) { return fmt::format("{}", value); }
std::string probability(float value) { return fmt::format("{:.6f}", value); }

/// "value", or "value_1", "value_2" of several.
std::vector<std::string> numbered(const std::string& name, int64_t count) {
  std::vector<std::string> names = {name};
  if (count == 1) return names;
  names.clear();
  for (int64_t i = 1; i <= count; ++i) names.push_back(name + "_" + std::to_string(i));
  return names;
}

/// The columns of a table of answers, and its rows.
class AnswerTable {
 public:
  AnswerTable(Answers& answers, int64_t top) : answers_(answers), top_(std::min(top, answers.width())) {
    has_lines_ = answers.size() > 0 && answers.place(0).line >= 0;
  }

  std::string text() {
    std::string text = csv_line(titles());
    for (int64_t i = 0; i < answers_.size(); ++i) text += csv_line(row(i));
    return text;
  }

 private:
  std::vector<std::string> titles() const {
    std::vector<std::string> titles = {"file"};
    if (has_lines_) titles.emplace_back("line");
    const auto add = [&](const std::vector<std::string>& more) {
      titles.insert(titles.end(), more.begin(), more.end());
    };
    switch (answers_.kind()) {
      case PredictionKind::class_logits:
        for (int64_t k = 1; k <= top_; ++k)
          add({k == 1 ? "class" : fmt::format("class_{}", k),
               k == 1 ? "probability" : fmt::format("probability_{}", k)});
        break;
      case PredictionKind::logit:
        add(numbered("probability", answers_.width()));
        break;
      case PredictionKind::values:
      case PredictionKind::log_values:
        add(numbered("value", answers_.width()));
    }
    if (answers_.has_labels())
      add(answers_.kind() == PredictionKind::class_logits ? numbered("label", 1) : numbered("label", answers_.width()));
    return titles;
  }

  std::vector<std::string> row(int64_t sample) {
    const Answers::Place place = answers_.place(sample);
    std::vector<std::string> cells = {short_file(place.file)};
    if (has_lines_) cells.push_back(std::to_string(place.line));
    const std::span<const float> answer = answers_.read(sample);
    if (answers_.kind() == PredictionKind::class_logits) {
      for (const int64_t c : best_classes(answer)) {
        cells.push_back(answers_.class_name(c));
        cells.push_back(probability(answer[static_cast<size_t>(c)]));
      }
    } else {
      for (const float value : answer)
        cells.push_back(answers_.kind() == PredictionKind::logit ? probability(value) : number(value));
    }
    if (answers_.has_labels()) add_label(sample, cells);
    return cells;
  }

  void add_label(int64_t sample, std::vector<std::string>& cells) {
    const auto label = answers_.label(sample);
    if (answers_.kind() == PredictionKind::class_logits)
      cells.push_back(label ? answers_.class_name(static_cast<int64_t>((*label)[0])) : "");
    else
      for (int64_t i = 0; i < answers_.width(); ++i)
        cells.push_back(label && i < static_cast<int64_t>(label->size()) ? number((*label)[static_cast<size_t>(i)])
                                                                         : "");
  }

  std::vector<int64_t> best_classes(std::span<const float> row) const {
    std::vector<int64_t> classes(row.size());
    std::iota(classes.begin(), classes.end(), int64_t{0});
    std::partial_sort(classes.begin(), classes.begin() + top_, classes.end(), [&](int64_t a, int64_t b) {
      const float left = row[static_cast<size_t>(a)], right = row[static_cast<size_t>(b)];
      return left != right ? left > right : a < b;
    });
    classes.resize(static_cast<size_t>(top_));
    return classes;
  }

  Answers& answers_;
  const int64_t top_;
  bool has_lines_ = false;
};

void require_output(const PredictOptions& options) {
  if (!options.layer.empty() && options.output.empty())
    throw SpecError({}, "-o", "is missing: the output of a layer is written to a file", "e.g. -o out.npy");
  if (!options.layer.empty()) require_prediction_name(options.output);
  if (options.output.empty()) return;
  if (!is_array_file(options.output) && !options.output.ends_with(".csv"))
    throw SpecError({}, "-o", "'" + options.output + "' is neither .csv, .npy nor .safetensors",
                    "e.g. -o answers.csv for a table of answers, or -o out.npy for the output of the network");
  require_writable_file(options.output, "-o");
}

/// Writes the output of a layer.
int predict_array(const PredictOptions& options, const JobSpec& spec, EvaluateOptions evaluate) {
  const std::string output = fs::absolute(options.output).string();
  const TemporaryFile part(part_name(output));
  evaluate.output = part.path();
  const int code = run_evaluation(spec, evaluate).code;
  if (code != kExitDone) return code;
  const int fd = open(part.path().c_str(), O_RDONLY | O_CLOEXEC);
  const bool is_synced = fd >= 0 && fsync(fd) == 0;
  std::error_code error(is_synced ? 0 : errno, std::generic_category());
  if (fd >= 0) close(fd);
  if (is_synced) fs::rename(part.path(), output, error);
  if (error) throw EnvError("cannot write " + output + ": " + error.message());
  std::cout << evaluate.layer << ": written to " << options.output << "\n";
  return code;
}

/// Writes the table of answers to the file, or to stdout.
int predict_table(const PredictOptions& options, const JobSpec& spec, EvaluateOptions evaluate,
                  std::optional<QuietStdout>& quiet) {
  const TemporaryFile prediction(prediction_file(spec));
  evaluate.output = prediction.path();
  const int code = run_evaluation(spec, evaluate).code;
  quiet.reset();
  if (code != kExitDone) return code;
  Answers answers(spec, spec.validation_set(), prediction.path(), class_names_of(evaluate.checkpoint, spec));
  const std::string table = AnswerTable(answers, options.top).text();
  if (options.output.empty()) {
    std::cout << table << std::flush;
  } else {
    write_output(options.output, table);
    std::cout << with_commas(answers.size()) << (answers.size() == 1 ? " answer" : " answers") << ": written to "
              << options.output << "\n";
  }
  return code;
}

int predict(const PredictOptions& options) {
  require_output(options);
  std::optional<QuietStdout> quiet;
  if (options.output.empty()) quiet.emplace();
  const PredictedWords words = split_words(options.words);
  const JobSpec job = options.job.with(words.overrides).load();
  const JobSpec spec = words.files.empty() ? job : with_samples(job, words.files);
  require_possible(spec, {.evaluate = EvaluateOptions{.checkpoint = "?"}});
  EvaluateOptions evaluate{.checkpoint = find_evaluated(options.checkpoint, job)};
  evaluate.layer = options.layer.empty() ? answer_layer(spec) : options.layer;
  if (options.output.empty() || !is_array_file(options.output)) return predict_table(options, spec, evaluate, quiet);
  return predict_array(options, spec, evaluate);
}

}  // namespace

void add_predict_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<PredictOptions>();
  auto* command = app.add_subcommand("predict", "Write the answers of a network for files, folders or tables");
  command->add_option("JOB.yaml", options->job.file, "Job file; - reads standard input")->required();
  command->add_option("FILE|field=value", options->words,
                      "Files or folders of samples without labels, default: the validation set; and fields that "
                      "override those of the job file");
  add_checkpoint_option(*command, options->checkpoint);
  command->add_option("-o,--output", options->output,
                      "File to write: .csv for a table of answers, .npy or .safetensors for the output of the network; "
                      "default: a table on stdout");
  command->add_option("--top", options->top, "Classes per sample in the table, the most probable first")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}))
      ->capture_default_str();
  command->add_option("--layer", options->layer,
                      "Layer whose output is written to an array; default: the one that the loss reads");
  command->footer(
      R"(A table has a row per sample: its file (and its line in a table), then the most probable class and its probability, or
the predicted number. Class names come from the checkpoint. Samples are files like those of the job's data set,
without labels: images, folders of images at any depth, tables without the label column, arrays, JSON Lines. For samples
that have labels (the validation set) the last column is the label.

Row i of an array is the output for sample i, under any plan; bf16 is written as f32.

Examples:
  trainctl predict job.yaml photos/ -o answers.csv             best or newest checkpoint of the job's newest run
  trainctl predict job.yaml cat.jpg dog.jpg --top 3            prints the table
  trainctl predict job.yaml test.csv -o answers.csv --checkpoint 3
  trainctl predict job.yaml -o answers.csv                     the validation set, with its labels
  trainctl predict job.yaml --layer fc1 -o features.safetensors launch.ranks=2)");
  command->callback([&chosen, options] { chosen = [options] { return predict(*options); }; });
}

}  // namespace trainctl
