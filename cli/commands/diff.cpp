// trainctl diff: finds where two runs diverge, or a run and activations that another program has saved.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands/checkpoint/find_checkpoint.h"
#include "cli/commands/commands.h"
#include "cli/commands/find_run.h"
#include "cli/report/difference_page.h"
#include "cli/text/table.h"
#include "engine/base/error.h"
#include "engine/base/output_file.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/spec/job_spec.h"
#include "engine/train/verification/run_difference.h"

namespace trainctl {
namespace {

constexpr int kExitRunsDiffer = 1;  ///< same as the exit code of cmp and diff
constexpr size_t kMostRowsShown = 20;

struct DiffArguments {
  std::string a, b;
  std::string log_dir = LaunchSpec{}.log_dir;
  double tolerance = 0;
  int64_t step = 0;
  std::string html;  ///< a file; empty: none
  bool json = false;
};

std::string distance_text(double distance) {
  return std::isfinite(distance) ? fmt::format("{:.2e}", distance) : std::string("not finite, or only in one run");
}

/// The report for a terminal: the first loss and the first tensor that differ, and by how much.
std::string difference_text(const RunDifference& found, const std::string& a, const std::string& b) {
  std::string text = "A " + a + "\nB " + b + "\n";
  for (const std::string& note : found.notes) text += "note: " + printable(note) + "\n";
  if (found.first_loss)
    text += fmt::format("the losses differ from step {} on, by {}\n", *found.first_loss,
                        distance_text(found.first_loss_distance));
  else if (!found.loss_steps.empty())
    text += fmt::format("the losses of {} steps are equal\n", found.loss_steps.size());
  const TensorDistance* first = found.first();
  if (first == nullptr) {
    if (!found.steps.empty())
      text += fmt::format("all tensors are equal after {} steps: {}\n", found.steps.size(),
                          format_list({found.steps.begin(), found.steps.end()}));
    return text;
  }
  text += fmt::format("the first tensor that differs: the {} {} after step {}\n", first->kind, printable(first->name),
                      first->step);
  Table table({">step", "kind", "tensor", "distance"});
  size_t rows = 0, all = 0;
  for (const TensorDistance& each : found.distances) {
    if (!each.differs || each.step != first->step) continue;
    ++all;
    if (++rows <= kMostRowsShown)
      table.add({std::to_string(each.step), each.kind, printable(each.name), distance_text(each.distance)});
  }
  text += table.str();
  if (all > kMostRowsShown) text += fmt::format("  and {} more after step {}\n", all - kMostRowsShown, first->step);
  return text;
}

int diff_runs(const DiffArguments& options) {
  const std::string a = find_run(options.a, options.log_dir).path();
  const bool is_file = is_safetensors(options.b);
  const std::string b = is_file ? options.b : find_run(options.b, options.log_dir).path();
  const RunDifference found =
      is_file ? compare_with_file(a, b, options.step, options.tolerance) : compare_run_folders(a, b, options.tolerance);
  if (!found.has_compared())
    throw EnvError("the runs have nothing in common that could be compared" +
                   (found.notes.empty() ? std::string() : ": " + found.notes.front()));
  if (!options.html.empty()) write_output(options.html, difference_page(found, a, b));
  if (options.json)
    std::cout << to_json(found).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << "\n";
  else
    std::cout << difference_text(found, a, b);
  return found.is_equal() ? kExitDone : kExitRunsDiffer;
}

}  // namespace

void add_diff_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<DiffArguments>();
  auto* command =
      app.add_subcommand("diff", "Find the first step, layer and tensor where two runs diverge; exit 1 if they do");
  command->add_option("A", options->a, "Number or folder of a run, or latest")->required();
  command->add_option("B", options->b, "The same, or a .safetensors file with outputs of layers")->required();
  command->add_option("--tolerance", options->tolerance, "Relative distance that counts as equal; 0: compare bits")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--step", options->step, "Printed step to compare with a file; default: the first")
      ->check(CLI::PositiveNumber);
  command->add_option("--html", options->html, "Draw the differences by tensor and step")->type_name("FILE");
  command->add_flag("--json", options->json, "Print the differences as JSON");
  command->add_option("--log-dir", options->log_dir, "launch.log_dir of the jobs")->capture_default_str();
  command->footer(
      R"(Compares losses, fingerprints of weights, gradients and optimizer states (train.fingerprints: N, every N steps), and
printed tensors (print: {format: npy}). Fingerprints do not depend on the plan: they are equal
if the bits are, also under different plans; otherwise set --tolerance, such as 1e-4.

A program in PyTorch can save outputs under the names of layers with safetensors.torch.save_file; they are compared with
the printed tensors of the run, in the order of the network.

Examples:
  trainctl diff 3 4
  trainctl diff 3 4 --tolerance 1e-4 --html diff.html
  trainctl diff 3 activations.safetensors --step 1 --tolerance 1e-5)");
  command->callback([&chosen, options] { chosen = [options] { return diff_runs(*options); }; });
}

}  // namespace trainctl
