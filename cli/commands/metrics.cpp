// trainctl metrics: prints a run's metrics as a table or as CSV.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "cli/commands/commands.h"
#include "cli/commands/find_run.h"
#include "cli/render/metric_rows.h"
#include "cli/text/table.h"
#include "engine/base/error.h"
#include "engine/spec/job_spec.h"

namespace trainctl {
namespace {

struct MetricsArguments {
  std::string run;
  std::string rows = "steps";  ///< steps, epochs, validations or loads
  int64_t tail = 0;            ///< 0: all
  bool csv = false;
  std::string log_dir = LaunchSpec{}.log_dir;
};

int metrics(const MetricsArguments& options) {
  const RunDirectory run = find_run(options.run, options.log_dir);
  MetricRows rows = read_metric_rows(run, row_kind(options.rows));
  if (options.tail > 0) rows.keep_last(static_cast<size_t>(options.tail));
  if (options.csv) {
    std::cout << rows.csv();
  } else if (rows.rows.empty()) {
    std::cout << "run " << run.run() << " has no " << options.rows << " yet\n";
  } else {
    std::vector<std::string> headers;
    for (const std::string& column : rows.columns) headers.push_back(">" + column);
    Table table(headers);
    for (const auto& row : rows.rows) table.add(row);
    std::cout << table.str();
  }
  return kExitDone;
}

}  // namespace

void add_metrics_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<MetricsArguments>();
  auto* command = app.add_subcommand("metrics", "Print a run's loss and metrics as a table or CSV");
  command->add_option("run", options->run, "Number or folder of a run, or latest; default: latest");
  command->add_option("--rows", options->rows, "Rows to print")
      ->check(CLI::IsMember({"steps", "epochs", "validations", "loads"}))
      ->option_text("steps|epochs|validations|loads")
      ->capture_default_str();
  command->add_option("--tail", options->tail, "Only the last N rows")->check(CLI::PositiveNumber)->option_text("N");
  command->add_flag("--csv", options->csv, "Print comma-separated values with a header");
  command->add_option("--log-dir", options->log_dir, "launch.log_dir of the job")->capture_default_str();
  command->footer(
      R"(The rows are those of metrics.jsonl. A non-finite loss is printed as nan, inf or -inf. `--rows loads` prints the load of
experts per step, over all layers: the largest and the smallest load relative to the mean, the entropy of the router,
the balance loss (1: all loads are equal) and the share of dropped tokens.

Examples:
  trainctl metrics
  trainctl metrics 3 --rows epochs
  trainctl metrics log_output/3 --csv > losses.csv)");
  command->callback([&chosen, options] { chosen = [options] { return metrics(*options); }; });
}

}  // namespace trainctl
