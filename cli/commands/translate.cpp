// trainctl translate: how names of other tools are written in a job file.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/render/terminal.h"
#include "cli/text/table.h"
#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/spec/fields.h"
#include "engine/spec/foreign_names.h"
#include "engine/spec/job_text.h"
#include "engine/spec/yaml_tree.h"

namespace trainctl {
namespace {

struct TranslateArguments {
  std::vector<std::string> words;
  bool json = false;
};

struct Translation {
  std::string name, kind, ours, write;
};

/// "units, bias, init", the required ones first.
std::string names_in_order(const std::vector<Field>& fields) {
  std::vector<std::string> required, others;
  for (const Field& field : fields) (field.is_required ? required : others).push_back(field.name);
  required.insert(required.end(), others.begin(), others.end());
  return join(required);
}

using TypesOfKind = std::pair<NameKind, const std::vector<EntryType>*>;
std::array<TypesOfKind, 5> own_types() {
  return {{{NameKind::layer, &layer_types()},
           {NameKind::loss, &loss_types()},
           {NameKind::optimizer, &optimizer_types()},
           {NameKind::metric, &metric_types()},
           {NameKind::transform, &transform_types()}}};
}

void add_own_type(const std::string& word, NameKind kind, const EntryType& type, const std::string& how,
                  std::vector<Translation>& found) {
  const std::string fields = names_in_order(type.fields);
  found.push_back({word, std::string(to_string(kind)), type.name, how + (fields.empty() ? "" : "; fields: " + fields)});
}

/// Types of a job that have this name themselves, with their fields.
void add_own_types(const std::string& word, std::vector<Translation>& found) {
  for (const auto& [kind, types] : own_types())
    if (const EntryType* type = find_type(*types, word)) add_own_type(word, kind, *type, "the same name", found);
}

/// Types of a job that other tools spell `word`: nn.LSTM.
void add_respelled_types(const std::string& word, std::vector<Translation>& found) {
  for (const auto& [kind, types] : own_types()) {
    const std::string name = same_name(word, names_of(*types));
    if (name.empty()) continue;
    const std::string how = kind == NameKind::transform ? name : "{type: " + name + "}";
    add_own_type(word, kind, *find_type(*types, name), "write " + how, found);
  }
}

void add(const std::string& word, std::vector<Translation>& found) {
  const size_t before = found.size();
  add_own_types(word, found);
  if (found.size() > before) return;
  for (const ForeignName* name : find_foreign(word))
    found.push_back({word, std::string(to_string(name->kind)), std::string(name->ours), hint_of(*name)});
  if (found.size() > before) return;
  for (const FieldAt& field : fields_called(word))
    found.push_back({word, "field", field.path, "the same name: " + field.path});
  if (found.size() > before) return;
  add_respelled_types(word, found);
  if (found.size() == before) found.push_back({word, "", "", "unknown"});
}

/// The keys of a configuration, and its values that are names. A value with '/' is a path or the name of a model.
void add_all(const YamlNode& node, std::vector<std::string>& words) {
  const auto add_word = [&](const std::string& word) {
    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
  };
  for (const YamlNode& item : node.items) add_all(item, words);
  for (const YamlNode::Entry& entry : node.entries) {
    if (!find_foreign(entry.key).empty()) add_word(entry.key);
    add_all(entry.value, words);
  }
  if (!node.is_scalar() || node.text.find_first_of(" /") != std::string::npos) return;
  const std::vector<const ForeignName*> found = find_foreign(node.text);
  const bool is_name = std::any_of(found.begin(), found.end(), [](const ForeignName* name) {
    return name->kind != NameKind::field && name->kind != NameKind::layer_field;
  });
  if (is_name && node.text.find_first_not_of("0123456789.") != std::string::npos) add_word(node.text);
}

std::vector<Translation> translations_of(const std::vector<std::string>& words) {
  std::vector<Translation> found;
  std::error_code ignored;
  for (const std::string& word : words) {
    if (word != "-" && !std::filesystem::is_regular_file(word, ignored)) {
      add(word, found);
      continue;
    }
    const JobText text = read_job_text(word);
    std::vector<std::string> names;
    add_all(read_yaml(text.text, text.name), names);
    for (const std::string& name : names) add(name, found);
    if (names.empty())
      throw SpecError({text.name, 0, 0}, "", "contains no known name of another tool",
                      "translate reads configurations in JSON or YAML");
  }
  return found;
}

std::vector<Translation> all_translations() {
  std::vector<Translation> all;
  for (const ForeignName& name : foreign_names())
    all.push_back({std::string(name.names), std::string(to_string(name.kind)), std::string(name.ours), hint_of(name)});
  return all;
}

int translate(const TranslateArguments& options) {
  const std::vector<Translation> rows = options.words.empty() ? all_translations() : translations_of(options.words);
  if (options.json) {
    auto json = nlohmann::ordered_json::array();
    for (const Translation& row : rows)
      json.push_back({{"name", row.name}, {"kind", row.kind}, {"here", row.ours}, {"write", row.write}});
    std::cout << json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << "\n";
  } else {
    Table table({"name", "kind", "here", "in a job"});
    for (const Translation& row : rows) table.add({printable(row.name), row.kind, row.ours, row.write});
    std::cout << table.str(0, output_width(STDOUT_FILENO));
  }
  const bool is_any_known = std::any_of(rows.begin(), rows.end(), [](const auto& row) { return !row.kind.empty(); });
  return is_any_known ? kExitDone : kExitSpec;
}

}  // namespace

void add_translate_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<TranslateArguments>();
  auto* command = app.add_subcommand("translate", "Show the job-file names for names from other tools");
  command->add_option(
      "name", options->words,
      "Names (lr, batch_size, nn.Linear, cross_entropy), or configurations of other tools in JSON or YAML; "
      "default: all known names");
  command->add_flag("--json", options->json, "Print a JSON array");
  command->footer(
      R"(Knows names of PyTorch, Keras, Hugging Face, Lightning, Axolotl, DeepSpeed, Megatron and MindSpore. Errors of a job
file use the same table.

Examples:
  trainctl translate lr batch_size early_stopping
  trainctl translate nn.Linear CrossEntropyLoss
  trainctl translate ds_config.json)");
  command->callback([&chosen, options] { chosen = [options] { return translate(*options); }; });
}

}  // namespace trainctl
