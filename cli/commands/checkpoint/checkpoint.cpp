// trainctl checkpoint: looks at checkpoints, compares them, and makes files of whole tensors of them, or of such files
// checkpoints.
#include <CLI/CLI.hpp>

#include "cli/commands/checkpoint/checkpoint_commands.h"

namespace trainctl {

void add_checkpoint_command(CLI::App& app, Action& chosen) {
  auto* checkpoint =
      app.add_subcommand("checkpoint", "List, show, verify, compare, merge, export and import checkpoints");
  checkpoint->require_subcommand(1);
  checkpoint->footer(R"(Examples:
  trainctl checkpoint list                      those of the latest run
  trainctl checkpoint show 3                    the newest complete one of run 3
  trainctl checkpoint verify log_output/3       every byte of every checkpoint of run 3
  trainctl checkpoint diff 3 4                  how far the newest ones of two runs are apart
  trainctl checkpoint merge 3 -o model.safetensors
  trainctl checkpoint export 3 --map gpt2 -o model.safetensors        with the names of Hugging Face
  trainctl checkpoint import model.safetensors --map gpt2 --job job.yaml -o start

A checkpoint is a folder, as log_output/3/checkpoints/step_00000120. Wherever one is named, a run (its number, its folder,
or latest) or a folder of checkpoints stands for its newest complete one. docs/checkpoints.md describes the files.

trainctl help checkpoint list says more about one of them.)");
  for (const auto add : kCheckpointCommands) add(*checkpoint, chosen);
}

}  // namespace trainctl
