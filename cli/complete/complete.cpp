// Completes the word that is being typed, for the scripts of the shells: commands and options as the parser has them,
// and values by the name of their argument.
#include "cli/complete/complete.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>

#include "cli/command_words.h"
#include "cli/measure/collective_bench.h"
#include "cli/measure/op_request.h"
#include "cli/measure/public_models.h"
#include "cli/text/job_templates.h"
#include "engine/base/error.h"
#include "engine/compile/compile.h"
#include "engine/spec/job_spec.h"
#include "launcher/registry.h"
#include "launcher/run_directory.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// Folders, and files with one of the suffixes, that begin with the typed path.
std::vector<Candidate> paths(const std::string& typed, const Words& endings) {
  const size_t slash = typed.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : typed.substr(0, slash + 1);
  std::vector<Candidate> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder.empty() ? "." : folder, ignored)) {
    const std::string name = entry.path().filename();
    if (name.starts_with('.')) continue;
    const bool wanted = std::find(endings.begin(), endings.end(), entry.path().extension()) != endings.end();
    if (entry.is_directory(ignored))
      found.push_back({folder + name + "/", ""});
    else if (wanted)
      found.push_back({folder + name, ""});
  }
  return found;
}

/// Numbers of all active runs.
std::vector<Candidate> running_numbers() {
  std::vector<Candidate> found;
  for (const RegisteredRun& run : running_runs())
    found.push_back({std::to_string(run.run), run.name + " in " + run.log_dir});
  return found;
}

/// Numbers of all runs of a log directory, and "latest".
std::vector<Candidate> all_numbers(const CommandWords& typed) {
  const std::string given = typed.value_of("--log-dir");
  const std::string log_dir = given.empty() ? LaunchSpec{}.log_dir : given;
  std::vector<Candidate> found;
  for (const int run : list_runs(log_dir))
    found.push_back({std::to_string(run), std::string(to_string(state_of(RunDirectory(log_dir, run))))});
  if (!found.empty()) found.push_back({"latest", "run " + found.back().word});
  return found;
}

std::vector<Candidate> commands_below(const CLI::App& app) {
  std::vector<Candidate> found;
  for (const CLI::App* command : commands_of(app)) found.push_back({command->get_name(), command->get_description()});
  return found;
}

/// `help bench o`: the commands below those that are already named.
std::vector<Candidate> commands_to_explain(const CommandWords& typed) {
  const CLI::App* command = typed.command->get_parent();
  for (const std::string& word : typed.positionals)
    if (command != nullptr) command = find_command(*command, word);
  return command == nullptr ? std::vector<Candidate>{} : commands_below(*command);
}

std::vector<Candidate> ops() {
  std::vector<Candidate> found = {{"all", "every op"}};
  for (const KernelDef* kernel : all_kernels()) found.push_back({kernel->name, example_of(*kernel).what});
  return found;
}

std::vector<Candidate> models() {
  std::vector<Candidate> found = {{"all", "every model"}};
  for (const PublicModel& model : public_models()) found.push_back({std::string(model.name), std::string(model.title)});
  return found;
}

std::vector<Candidate> words(const Words& names) {
  std::vector<Candidate> found;
  for (const std::string& name : names) found.push_back({name, ""});
  return found;
}

std::vector<Candidate> options_of(const CLI::App& command) {
  std::vector<Candidate> found;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) continue;
    for (const std::string& name : option->get_lnames())
      found.push_back({"--" + name, first_line(option->get_description())});
  }
  return found;
}

/// The positional that is being typed: the last one takes all remaining words.
const CLI::Option* positional(const CommandWords& typed) {
  const CLI::Option* last = nullptr;
  size_t index = 0;
  for (const CLI::Option* option : typed.command->get_options()) {
    if (!option->get_positional()) continue;
    last = option;
    if (index++ == typed.positionals.size()) return option;
  }
  return last != nullptr && last->get_items_expected_max() > 1 ? last : nullptr;
}

/// "bash | zsh | fish" -> those.
std::vector<Candidate> choices(const std::string& text) {
  std::vector<Candidate> found;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(" | ", at), text.size());
    found.push_back({text.substr(at, end - at), ""});
    at = end + 3;
  }
  return found;
}

/// The job file is the first argument that looks like one; all later words with '=' are overrides.
std::vector<Candidate> overrides(const CommandWords& typed, const std::string& word) {
  std::string job;
  Words others;
  for (const std::string& given : typed.positionals) {
    if (given.find('=') != std::string::npos)
      others.push_back(given);
    else if (job.empty() && (given.ends_with(".yaml") || given.ends_with(".yml")))
      job = given;
  }
  return complete_override(word, job, others);
}

std::vector<Candidate> value_of(const CommandWords& typed, const CLI::Option& argument, const std::string& word) {
  const std::string name = argument.get_name(), command = typed.command->get_name();
  if (name == "JOB.yaml" || name == "--plan") return paths(word, {".yaml", ".yml"});
  if (name == "field=value" || name == "PROMPT" || name == "field=values") return overrides(typed, word);
  if (name == "run") return command == "attach" || command == "stop" ? running_numbers() : all_numbers(typed);
  if (name == "CHECKPOINT" || name == "A" || name == "B") {
    std::vector<Candidate> found = all_numbers(typed);
    for (Candidate& path : paths(word, {".safetensors"})) found.push_back(std::move(path));
    return found;
  }
  if (name == "command") return commands_to_explain(typed);
  if (name == "OP") return ops();
  if (name == "MODEL") return models();
  if (name == "KIND") {
    Words kinds = collective_names();
    kinds.push_back("all");
    return words(kinds);
  }
  if (name == "--log-dir") return paths(word, {});
  if (name == "--show") return {{"all", "output of every rank"}};
  if (name == "--after") {
    std::vector<Candidate> found;
    for (const Pass& pass : passes()) found.push_back({std::string(pass.name), std::string(pass.doc)});
    return found;
  }
  if (name == "template") {
    std::vector<Candidate> found;
    for (const JobTemplate& item : job_templates()) found.push_back({std::string(item.name), ""});
    return found;
  }
  if (argument.get_description().find(" | ") != std::string::npos) return choices(argument.get_description());
  return {};
}

/// `--device=c` -> `--device=cpu`.
std::vector<Candidate> values_after_equals(const CommandWords& typed, const std::string& word, size_t equals) {
  const CLI::Option* option = find_option(*typed.command, word.substr(0, equals));
  if (option == nullptr) return {};
  std::vector<Candidate> found = value_of(typed, *option, word.substr(equals + 1));
  for (Candidate& candidate : found) candidate.word.insert(0, word.substr(0, equals + 1));
  return found;
}

std::vector<Candidate> all(const CLI::App& app, const Words& line) {
  const std::string word = line.empty() ? "" : line.back();
  const CommandWords typed = split_words(app, line.empty() ? line : Words(line.begin(), line.end() - 1));
  if (!typed.not_a_command.empty()) return {};
  if (typed.awaited != nullptr) return value_of(typed, *typed.awaited, word);
  if (word.starts_with('-') && !typed.options_ended) {
    const size_t equals = word.find('=');
    return equals == std::string::npos ? options_of(*typed.command) : values_after_equals(typed, word, equals);
  }
  if (std::vector<Candidate> commands = commands_below(*typed.command); !commands.empty()) return commands;
  const CLI::Option* argument = positional(typed);
  return argument == nullptr ? std::vector<Candidate>{} : value_of(typed, *argument, word);
}

}  // namespace

std::vector<Candidate> complete(const CLI::App& app, const Words& words) {
  try {
    std::vector<Candidate> found = all(app, words);
    const std::string typed = words.empty() ? "" : words.back();
    std::erase_if(found, [&](const Candidate& candidate) { return !candidate.word.starts_with(typed); });
    std::stable_sort(found.begin(), found.end(),
                     [](const Candidate& a, const Candidate& b) { return a.word < b.word; });
    const auto equal = [](const Candidate& a, const Candidate& b) { return a.word == b.word; };
    found.erase(std::unique(found.begin(), found.end(), equal), found.end());
    return found;
  } catch (const std::exception&) {
    return {};
  }
}

int print_candidates(const CLI::App& app, Words words) {
  if (!words.empty() && words.front() == "--") words.erase(words.begin());
  for (const Candidate& candidate : complete(app, words))
    std::cout << candidate.word << (candidate.meaning.empty() ? "" : "\t" + candidate.meaning) << "\n";
  return kExitDone;
}

}  // namespace trainctl
