// Commands and options come from the parser itself; values are chosen by the argument's name.
#include "cli/complete/complete.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>

#include "cli/job_templates.h"
#include "engine/base/error.h"
#include "engine/compile/compile.h"
#include "engine/spec/job_spec.h"
#include "launcher/registry.h"
#include "launcher/run_directory.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

/// The meaning of the words before the last one.
struct Typed {
  const CLI::App* command = nullptr;
  Words positionals;                           ///< in order
  std::string log_dir = LaunchSpec{}.log_dir;  ///< --log-dir, if given
  const CLI::Option* awaited = nullptr;        ///< the option whose value is being typed
};

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

const CLI::Option* find_option(const CLI::App& command, const std::string& name) {
  for (const CLI::Option* option : command.get_options())
    if (!option->get_positional() && option->check_name(name)) return option;
  return nullptr;
}

Typed read(const CLI::App& app, const Words& words) {
  Typed typed;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    if (command->get_name() == words.front()) typed.command = command;
  if (typed.command == nullptr) return typed;
  for (size_t i = 1; i + 1 < words.size(); ++i) {
    if (typed.awaited != nullptr) {
      if (typed.awaited->check_name("--log-dir")) typed.log_dir = words[i];
      typed.awaited = nullptr;
    } else if (words[i].starts_with('-')) {
      const CLI::Option* option = find_option(*typed.command, words[i]);
      if (option != nullptr && takes_value(*option)) typed.awaited = option;
    } else {
      typed.positionals.push_back(words[i]);
    }
  }
  return typed;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// Folders, and files with one of the endings, that begin with the typed path.
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

/// Numbers of all running runs, or of all runs of a log directory.
std::vector<Candidate> run_numbers(const Typed& typed, bool running_only) {
  std::vector<Candidate> found;
  if (running_only) {
    for (const RegisteredRun& run : running_runs())
      found.push_back({std::to_string(run.run), run.name + " in " + run.log_dir});
    return found;
  }
  for (const int run : list_runs(typed.log_dir))
    found.push_back({std::to_string(run), std::string(to_string(state_of(RunDirectory(typed.log_dir, run))))});
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

/// The positional that is being typed: the last one takes all further words.
const CLI::Option* positional(const Typed& typed) {
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

std::vector<Candidate> value_of(const Typed& typed, const CLI::Option& argument, const std::string& word) {
  const std::string name = argument.get_name();
  if (name == "JOB.yaml") return paths(word, {".yaml", ".yml"});
  if (name == "field=value") {
    const auto job = std::find_if(typed.positionals.begin(), typed.positionals.end(),
                                  [](const std::string& p) { return p.ends_with(".yaml") || p.ends_with(".yml"); });
    return complete_override(word, job == typed.positionals.end() ? "" : *job);
  }
  if (name == "run") return run_numbers(typed, typed.command->get_name() != "logs");
  if (name == "--log-dir") return paths(word, {});
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

std::vector<Candidate> all(const CLI::App& app, const Words& words) {
  if (words.size() < 2) {
    std::vector<Candidate> found;
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
      if (!command->get_group().empty()) found.push_back({command->get_name(), command->get_description()});
    if (!words.empty() && words.back().starts_with('-'))
      for (Candidate& option : options_of(app)) found.push_back(std::move(option));
    return found;
  }
  const Typed typed = read(app, words);
  if (typed.command == nullptr) return {};
  const std::string& word = words.back();
  if (typed.awaited != nullptr) return value_of(typed, *typed.awaited, word);
  if (word.starts_with('-')) return options_of(*typed.command);
  const CLI::Option* argument = positional(typed);
  return argument == nullptr ? std::vector<Candidate>{} : value_of(typed, *argument, word);
}

}  // namespace

std::vector<Candidate> complete(const CLI::App& app, const Words& words) {
  try {
    std::vector<Candidate> found = all(app, words);
    const std::string typed = words.empty() ? "" : words.back();
    std::erase_if(found, [&](const Candidate& candidate) { return !candidate.word.starts_with(typed); });
    std::sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) { return a.word < b.word; });
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
