// trainctl checkpoint list: lists the checkpoints of a folder and which of them can be resumed from.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/commands/checkpoint/checkpoint_commands.h"
#include "cli/commands/checkpoint/facts.h"
#include "cli/commands/checkpoint/find_checkpoint.h"
#include "cli/text/table.h"
#include "engine/base/error.h"
#include "engine/base/measures.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/spec/job_spec.h"

namespace trainctl {
namespace {

struct CheckpointListArguments {
  std::string where;
  std::string log_dir = LaunchSpec{}.log_dir;
  bool json = false;
};

/// "mean loss 0.3121" is the mean of the epoch so far; other values are from the last validation.
std::string numbers(const Manifest& manifest) {
  std::vector<std::string> parts;
  if (const auto loss = epoch_loss(manifest)) parts.push_back("mean loss " + format_loss(*loss));
  for (const auto& [name, value] : manifest.metrics) parts.push_back(name + " " + format_loss(value));
  return join(parts);
}

std::string state(const CheckpointEntry& entry) {
  const std::string_view word = state_word(entry);
  const bool says_more = !entry.complete() && !entry.being_written;
  return says_more ? fmt::format("{}: {}", word, entry.problem) : std::string(word);
}

std::string table_of(const std::vector<CheckpointEntry>& entries) {
  Table table({">step", ">epochs", "written", ">size", "loss", "name", "state"});
  for (const CheckpointEntry& entry : entries) {
    const Manifest& m = entry.manifest;
    if (entry.complete())
      table.add({with_commas(entry.step), epoch_text(m), m.written, format_bytes(total_bytes(m)), numbers(m),
                 folder_name(entry.path), state(entry)});
    else
      table.add({with_commas(entry.step), "", "", "", "", folder_name(entry.path), state(entry)});
  }
  return table.str();
}

/// The bases that the checkpoints leave out.
std::string bases_of(const std::vector<CheckpointEntry>& entries) {
  std::set<std::string> bases;
  for (const CheckpointEntry& entry : entries)
    if (entry.complete() && entry.manifest.base) bases.insert(entry.manifest.base->from);
  std::string text;
  for (const std::string& base : bases) text += "  without the frozen weights of " + printable(base) + "\n";
  return text;
}

std::string lines_of(const std::vector<CheckpointEntry>& entries) {
  std::string text;
  for (const CheckpointEntry& entry : entries) {
    nlohmann::ordered_json json = {{"path", entry.path}, {"step", entry.step}, {"state", state_word(entry)}};
    if (!entry.complete()) json["problem"] = entry.problem;
    if (entry.complete()) put_facts(json, entry.manifest);
    text += json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  return text;
}

int list(const CheckpointListArguments& options) {
  const CheckpointPlace place = find_checkpoints(options.where, options.log_dir);
  if (place.folder.empty())
    throw SpecError({}, "", "'" + options.where + "' is a single checkpoint, not a folder of checkpoints",
                    "trainctl checkpoint show " + options.where);
  std::vector<CheckpointEntry> entries = CheckpointDirectory(place.folder).list();
  std::reverse(entries.begin(), entries.end());  // the newest last, as in trainctl logs
  if (options.json)
    std::cout << lines_of(entries);
  else if (entries.empty())
    std::cout << "no checkpoints in " << place.folder << "\n";
  else
    std::cout << place.folder << "\n" << table_of(entries) << bases_of(entries);
  return kExitDone;
}

}  // namespace

void add_checkpoint_list(CLI::App& checkpoint, Action& chosen) {
  auto options = std::make_shared<CheckpointListArguments>();
  auto* command = checkpoint.add_subcommand("list", "List the checkpoints of a run or a folder");
  command->add_option("CHECKPOINT", options->where,
                      "Number or folder of a run, latest, or a folder of checkpoints; default: latest");
  add_log_dir(*command, options->log_dir);
  command->add_flag("--json", options->json, "Print one JSON object per line: path, step, state, …");
  command->footer(R"(States:
  verified       complete, and `checkpoint verify` has checked every byte
  complete       checkpoint.json is valid, and its files have the right sizes
  damaged        not usable; the reason follows
  being written  by the latest attempt, or left unfinished when that ended
  half-written   left by an earlier attempt; the next run that saves in this folder deletes it

Examples:
  trainctl checkpoint list
  trainctl checkpoint list 3
  trainctl checkpoint list /mnt/checkpoints/gpt2 --json)");
  command->callback([&chosen, options] { chosen = [options] { return list(*options); }; });
}

}  // namespace trainctl
