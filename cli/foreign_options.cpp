// Tries the spellings of other tools first, then any field of the job: --micro-batches 4 means
// parallel.micro_batches=4.
#include "cli/foreign_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>
#include <vector>

#include "engine/base/text.h"
#include "engine/spec/fields.h"
#include "engine/spec/foreign_names.h"

namespace trainctl {
namespace {

using OptionNames = std::vector<std::string_view>;

/// Options that have no field.
struct Advice {
  OptionNames names;
  std::string_view text;
};

const std::vector<Advice>& advice() {
  static const std::vector<Advice> all = {
      {{"nnodes", "nnode", "nodes", "num_nodes", "num_machines", "node_rank", "machine_rank", "host", "hosts",
        "nodelist", "include", "exclude", "standalone"},
       "remove it: all ranks run on this host unless launch.hosts='[a, b:4]' names other hosts"},
      {{"master_addr", "master_port", "main_process_ip", "main_process_port", "rdzv_backend", "rdzv_endpoint",
        "rdzv_id", "rdzv_conf", "local_addr", "join", "sched_host", "sched_port"},
       "remove it: trainctl chooses the address and a free port for each run"},
      {{"monitor_interval", "start_method", "role", "multi_gpu", "allow_run_as_root", "oversubscribe",
        "kill_on_bad_exit"},
       "remove it: it has no effect here"},
      {{"tee", "redirects", "r", "t", "local_ranks_filter", "tag_output", "label", "l"},
       "use --show all to see the output of every rank; all output is saved in log_output/<run>/rank.<N>"},
      {{"m", "module", "no_python", "script", "program"},
       "name the program in the job file: command: [python3, train.py]; trainctl init command writes a template"},
      {{"dry_run", "plan_only"}, "use trainctl plan to see what a run would do without running it"},
      {{"daemon", "background", "bg", "detached"}, "write --detach"},
      {{"wait", "foreground"}, "remove it: run waits unless --detach is given"},
      {{"v", "verbose", "debug"}, "remove it; use --show all to see the output of every rank"},
  };
  return all;
}

std::string normalized(const std::string& option) {
  std::string name = option.substr(std::min(option.find_first_not_of('-'), option.size()));
  std::replace(name.begin(), name.end(), '-', '_');
  return lower_case(std::move(name));
}

bool is_one_of(const std::string& name, const OptionNames& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789.e-") == std::string::npos;
}

/// Returns whether the option's value is valid for the field.
bool fits(const std::string& value, const Field* field, std::string_view example) {
  if (value.empty() || value.find('=') != std::string::npos) return false;
  if (field != nullptr && !field->choices.empty())
    return std::find(field->choices.begin(), field->choices.end(), value) != field->choices.end();
  return example == "FOLDER" || example == "FILE" || example.empty() || is_number(value);
}

std::string write_override(const std::string& field, const std::string& value) {
  return "write " + field + "=" + value;
}

/// `-n4`: a number directly after the letters of a short option.
UnknownOption with_number_apart(const UnknownOption& option) {
  if (option.name.starts_with("--")) return option;
  const size_t digits = std::min(option.name.find_first_of("0123456789"), option.name.size());
  if (digits < 2 || digits == option.name.size()) return option;
  return {option.name.substr(0, digits), option.name.substr(digits)};
}

/// The value in "optimizer: {learning_rate: 0.1}": "0.1". A name in capitals is a placeholder.
std::string example_value(const ForeignName& name) {
  std::string_view text = name.example;
  const std::string key = std::string(name.ours.substr(name.ours.rfind('.') + 1)) + ": ";
  const size_t at = text.find(key);
  if (at == std::string_view::npos) return "VALUE";
  text.remove_prefix(at + key.size());
  return std::string(text.substr(0, text.find_first_of("},")));
}

/// Suggests the override that the option stands for; "" if no field matches.
std::string as_field(const std::string& name, const std::string& value) {
  if (const ForeignName* foreign = find_foreign(NameKind::field, name)) {
    if (foreign->ours.empty()) return std::string(foreign->note);
    const std::vector<FieldAt> fields = fields_called(foreign->ours);
    const Field* field = fields.size() == 1 ? fields[0].field : nullptr;
    if (field != nullptr && field->section != nullptr && field->stands_for.empty()) return hint_of(*foreign);
    const std::string example = example_value(*foreign);
    if (example.find_first_of("{[") != std::string::npos) return hint_of(*foreign);
    return write_override(std::string(foreign->ours), fits(value, field, example) ? value : example);
  }
  std::vector<FieldAt> fields = fields_called(name);
  if (fields.empty()) {  // --launch-ranks
    std::string dotted = name;
    if (const size_t first = dotted.find('_'); first != std::string::npos) dotted[first] = '.';
    fields = fields_called(dotted);
  }
  // If several fields have the name, an option means the outermost one: --name and --seed, not those of a section.
  const auto dots = [](const FieldAt& at) { return std::count(at.path.begin(), at.path.end(), '.'); };
  std::stable_sort(fields.begin(), fields.end(), [&](const FieldAt& a, const FieldAt& b) { return dots(a) < dots(b); });
  if (fields.empty() || (fields.size() > 1 && dots(fields[0]) == dots(fields[1]))) return "";
  const Field& field = *fields[0].field;
  const bool has_type = field.section != nullptr && field.stands_for.empty() && !field.section->fields.empty() &&
                        field.section->fields.front().name == "type";
  if (field.section != nullptr && field.stands_for.empty() && !has_type) return "";
  const std::string shown = !value.empty() && value.find('=') == std::string::npos ? value
                            : field.kind == FieldKind::flag                        ? "true"
                                                                                   : "VALUE";
  return write_override(fields[0].path + (has_type ? ".type" : ""), shown);
}

bool reads_job(const CLI::App& command) {
  return command.get_option_no_throw("JOB.yaml") != nullptr || command.get_parent() == nullptr;
}

}  // namespace

std::string our_spelling(const CLI::App& command, const UnknownOption& given) {
  const UnknownOption option = with_number_apart(given);
  const std::string name = normalized(option.name);
  const ForeignName* field = find_foreign(NameKind::field, name);
  const bool means_ranks = field != nullptr && field->ours == "launch.ranks";
  if (means_ranks && find_option(command, "--ranks") != nullptr)
    return "write --ranks " + (is_number(option.value) ? option.value : "N");
  if (!reads_job(command)) return "";
  if (is_one_of(name, {"x", "env", "export", "genv"}))
    return option.value.find('=') == std::string::npos ? "write env.NAME=VALUE" : "write env." + option.value;
  if (is_one_of(name, {"set", "override", "overrides", "opt", "param"}))
    return "set fields of the job without an option: " +
           (option.value.find('=') == std::string::npos ? "launch.ranks=4" : option.value);
  if (is_one_of(name, {"config", "config_file", "cfg", "job", "job_file", "file", "f", "yaml"}))
    return "pass the job file without an option: " + full_name(command) +
           (command.get_parent() == nullptr ? " run " : " ") + (option.value.empty() ? "job.yaml" : option.value);
  for (const Advice& one : advice())
    if (is_one_of(name, one.names)) return std::string(one.text);
  return as_field(name, option.value);
}

}  // namespace trainctl
