// trainctl generate: texts that follow prompts, with the weights of a checkpoint or those that the job starts from.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands/commands.h"
#include "cli/commands/evaluation_run.h"
#include "cli/errors.h"
#include "cli/run/job_file.h"
#include "cli/run/launch/generation_prompts.h"
#include "cli/run/launch/run.h"
#include "cli/run/launch/workload.h"
#include "cli/watch_files.h"
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/model_folder/generation_config.h"

namespace trainctl {
namespace {

struct GenerateArguments {
  JobFile job;
  std::vector<std::string> words;  ///< prompts, and fields that override those of the job
  std::string checkpoint, tokenizer;
  PromptOptions prompts;
  int64_t max_tokens = 256;
  std::optional<double> temperature, top_p, repetition_penalty;
  std::optional<int64_t> top_k;
  uint64_t seed = 0;
  bool json = false;
};

/// Returns whether a word sets a field of the job: a path of names, then '='.
bool is_override(const std::string& word) {
  const size_t end = word.find('=');
  if (end == std::string::npos || end == 0) return false;
  const auto is_part = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '[' || c == ']';
  };
  return std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(end), is_part);
}

/// Shows only warnings and failures of the run, so that the output contains only the texts.
class FailuresOnly : public RunObserver {
 public:
  void begin(const std::string&, const std::string&, const RunDirectory&, const std::string&) override {}
  void listen(std::string_view, bool) override {}
  void line(std::string_view) override {}
  void line_of(int, std::string_view) override {}
  void notice(std::string_view message) override { std::cerr << message << std::endl; }
  void news(std::string_view message) override { notice(message); }
  bool tick() override { return false; }
  void update(const LiveStatus&) override {}
  void end(const RunEnd& end, const RunDirectory& directory) override {
    if (end.exit_code != kExitDone) notice(end.ending + "; logs in " + directory.path());
  }
  void failure(std::string_view text) override { std::cerr << text << std::flush; }
};

/// The descriptor of stdout for the first rank, whose own stdout is its log.
class OutputDescriptor {
 public:
  OutputDescriptor() : fd_(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)) {
    if (fd_ < 0) throw EnvError(std::string("stdout cannot be duplicated: ") + std::strerror(errno));
  }
  ~OutputDescriptor() { close(fd_); }
  OutputDescriptor(const OutputDescriptor&) = delete;
  OutputDescriptor& operator=(const OutputDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

/// Without a setting on the command line, the model folder decides, as in transformers.
SamplingSettings sampling_of(const GenerateArguments& options, const GenerationConfig& config) {
  SamplingSettings sampling{.seed = options.seed};
  sampling.repetition_penalty = options.repetition_penalty.value_or(config.repetition_penalty.value_or(1));
  const bool samples = config.do_sample || options.top_k || options.top_p;
  sampling.temperature = options.temperature.value_or(samples ? config.temperature.value_or(1) : 0);
  sampling.top_k = options.top_k.value_or(config.do_sample ? config.top_k.value_or(kDefaultTopK) : 0);
  sampling.top_p = options.top_p.value_or(config.do_sample ? config.top_p.value_or(1) : 1);
  return sampling;
}

GenerationRequest generation_request_of(const GenerateArguments& options, const JobSpec& spec) {
  const std::string folder = model_folder_of(spec);
  const GenerationConfig config = folder.empty() ? GenerationConfig{} : read_generation_config(folder);
  if (!config.ignored.empty())
    std::cerr << "note: " << folder
              << "/generation_config.json has fields that trainctl does not apply: " << join(config.ignored)
              << std::endl;
  GenerationRequest request;
  request.tokenizer = tokenizer_of(spec, options.tokenizer, folder);
  request.max_tokens = options.max_tokens;
  request.sampling = sampling_of(options, config);
  request.end_tokens.assign(config.end_tokens.begin(), config.end_tokens.end());
  add_prompts(options.prompts, request);
  request.size = size_of(spec, request, config);
  request.format = options.json                 ? GenerationFormat::json
                   : request.prompts.size() > 1 ? GenerationFormat::pairs
                                                : GenerationFormat::text;
  return request;
}

/// Turns off what only a training run does.
JobSpec for_generation(JobSpec spec) {
  spec.train.checkpoint.emplace().every = "none";
  spec.train.stop_when.reset();
  if (spec.validation) spec.validation->generate.reset();
  spec.launch.max_restarts = 0;
  spec.print = {};
  spec.launch.log_dir += "/generations";
  return spec;
}

int generate(GenerateArguments options) {
  for (std::string& word : options.words)
    (is_override(word) ? options.job.overrides : options.prompts.texts).push_back(std::move(word));
  JobSpec spec = options.job.load();
  const OutputDescriptor output;
  WorkloadOptions for_workload;
  for_workload.evaluate.emplace().generate.emplace().output_fd = output.get();
  EvaluateOptions& evaluate = *for_workload.evaluate;
  evaluate.checkpoint = find_evaluated(options.checkpoint, spec);
  require_possible(spec, for_workload);
  evaluate.generate->request = generation_request_of(options, spec);
  boost::asio::io_context loop;
  std::unique_ptr<Workload> workload;
  {
    const auto watch = watch_files(spec.launch.timeout_seconds);
    workload = make_workload(for_generation(std::move(spec)), for_workload, loop);
  }
  RunDisplayOptions display{.make_observer = [](int) { return std::make_unique<FailuresOnly>(); }};
  return (*make_run(std::move(workload), std::move(display), loop))();
}

void add_sampling_options(CLI::App& command, GenerateArguments& options) {
  command.add_option("--max-tokens", options.max_tokens, "Maximum number of tokens to generate per prompt")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  command.add_option("--temperature", options.temperature, "0: always the most probable token; higher: more random")
      ->check(CLI::Range(0.0, 1e6));
  command.add_option("--top-k", options.top_k, "Sample from the K most probable tokens; 0: from all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 31));
  command.add_option("--top-p", options.top_p, "Sample from the most probable tokens whose probabilities add up to P")
      ->check(CLI::Range(0.0, 1.0));
  command
      .add_option("--repetition-penalty", options.repetition_penalty,
                  "Above 1: makes tokens that are already in the text less probable")
      ->check(CLI::Range(1e-6, 1e6));
  command.add_option("--seed", options.seed, "The same seed gives the same texts, under any plan")
      ->capture_default_str();
  command.add_option("--stop", options.prompts.stops, "Text that ends the answer and is not printed; may be repeated")
      ->allow_extra_args(false);
}

}  // namespace

void add_generate_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<GenerateArguments>();
  auto* command = app.add_subcommand("generate", "Generate text with a checkpoint's weights, or a model folder's");
  command->add_option("JOB.yaml", options->job.file, "Job file; - reads standard input")->required();
  command->add_option("PROMPT", options->words, "Prompts, and field=value to override fields of the job file");
  add_checkpoint_option(*command, options->checkpoint);
  command->add_option("--prompts", options->prompts.file,
                      "File with one prompt per line, or *.jsonl with the field prompt or messages; - is stdin");
  command->add_flag("--chat", options->prompts.chat, "Treat prompts as user messages, in the model's chat template");
  command->add_option("--system", options->prompts.system, "With --chat: the system message");
  command->add_option("--tokenizer", options->tokenizer,
                      "A model's folder, tokenizer.json or a SentencePiece model; default: that of the job");
  add_sampling_options(*command, *options);
  command->add_flag("--json", options->json, "Print one line of JSON per prompt");
  command->footer(
      R"(One prompt: its text is printed as it is generated. Several: each prompt and its text, dataset.batch texts at a time.

Without --temperature, --top-k and --top-p the settings are those of the model folder's generation_config.json; without
that file the most probable token is always chosen. A text ends at a token of eos_token_id, at a --stop string, after
--max-tokens, or at the maximum length of the model. The texts are the same under any plan. Logs are written to
log_output/generations/<number>.

Examples:
  trainctl generate tune.yaml "Once upon a time"                    best or newest checkpoint of the job's newest run
  trainctl generate tune.yaml --checkpoint weights "Once upon"      the weights that the job starts from
  trainctl generate tune.yaml --checkpoint latest --chat "Why is the sky blue?"
  trainctl generate tune.yaml --checkpoint 3 --prompts prompts.txt --temperature 0.7 --seed 1 --json dataset.batch=32)");
  command->callback([&chosen, options] { chosen = [options] { return generate(*options); }; });
}

}  // namespace trainctl
