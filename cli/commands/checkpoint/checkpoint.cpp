// trainctl checkpoint: inspects and compares checkpoints, writes files of whole tensors from them, and makes
// checkpoints from such files.
#include <CLI/CLI.hpp>

#include "cli/commands/checkpoint/checkpoint_commands.h"

namespace trainctl {

void add_checkpoint_command(CLI::App& app, Action& chosen) {
  auto* checkpoint =
      app.add_subcommand("checkpoint", "List, show, verify, compare, merge, export and import checkpoints");
  checkpoint->require_subcommand(1);
  checkpoint->footer(R"(Examples:
  trainctl checkpoint list                      checkpoints of the latest run
  trainctl checkpoint show 3                    newest complete checkpoint of run 3
  trainctl checkpoint verify log_output/3       check every byte of the checkpoints of run 3
  trainctl checkpoint diff 3 4                  compare the newest checkpoints of two runs
  trainctl checkpoint merge 3 -o model.safetensors
  trainctl checkpoint export 3 --map gpt2 -o model.safetensors        with Hugging Face names
  trainctl checkpoint import model.safetensors --map gpt2 --job job.yaml -o start

A checkpoint is a folder such as log_output/3/checkpoints/step_00000120. A run (its number, its folder, or latest) or a
folder of checkpoints can be given instead and means its newest complete checkpoint. docs/checkpoints.md describes the
files.

trainctl help checkpoint list describes one of these commands in detail.)");
  for (const auto add : kCheckpointCommands) add(*checkpoint, chosen);
}

}  // namespace trainctl
