// trainctl report: writes a page that shows runs, or the plan of a job.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "cli/commands/commands.h"
#include "cli/commands/find_run.h"
#include "cli/commands/job_arguments.h"
#include "cli/errors.h"
#include "cli/output_path.h"
#include "cli/report/page.h"
#include "cli/report/run_data.h"
#include "cli/report/serve.h"
#include "cli/run/launch/job_report.h"
#include "cli/text/launch_report.h"
#include "cli/watch_files.h"
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

struct ReportArguments {
  std::vector<std::string> words;  ///< runs; with --plan, fields
  std::string plan;                ///< a job file; empty: none
  std::string output = "report.html";
  std::string log_dir = LaunchSpec{}.log_dir;
  bool json = false;
  bool serve = false;
  uint16_t port = 0;
};

Json plan_of(const JobArguments& arguments) {
  const JobSpec spec = arguments.load();
  print_warnings(spec);
  if (spec.has_command()) return planned_data(command_report(spec), to_yaml(spec));
  const auto watch = watch_files(spec.launch.timeout_seconds);
  const PlannedJob job = plan_job(spec);
  return planned_data(report_of(job, true).json, to_yaml(job.spec));
}

std::vector<Json> data_of(const ReportArguments& options) {
  std::vector<Json> runs;
  JobArguments job;
  job.file = options.plan;
  for (const std::string& word : options.words) {
    const bool is_field = word.find('=') != std::string::npos;
    if (is_field && options.plan.empty())
      throw SpecError({}, word, "fields can only be set with --plan", "add --plan job.yaml");
    if (is_field)
      job.overrides.push_back(word);
    else
      runs.push_back(run_data(find_run(word, options.log_dir)));
  }
  if (!options.plan.empty()) runs.push_back(plan_of(job));
  if (runs.empty()) runs.push_back(run_data(find_run("latest", options.log_dir)));
  return runs;
}

Json read_page(const ReportArguments& options) { return page_data(data_of(options), std::string(report_version())); }

int serve_report(const ReportArguments& options) {
  const auto read = [&] {
    Json data = read_page(options);
    data["follow"] = true;
    data["written"] = nullptr;  // otherwise no two responses would be equal
    return data;
  };
  Served served;
  served.page = [&] { return report_page(read()); };
  served.data = [&] { return read().dump(-1, ' ', false, Json::error_handler_t::replace); };
  served.data();  // reports errors in the arguments before serving
  serve_page(options.port, served, [](uint16_t port) {
    std::cout << "http://127.0.0.1:" << port << "/ follows the run; Ctrl-C stops this server but not the run"
              << std::endl;
  });
  return kExitDone;
}

int report(const ReportArguments& options) {
  if (options.serve) return serve_report(options);
  if (!options.json) require_writable_file(options.output, "--output");
  const Json data = read_page(options);
  if (options.json) {
    std::cout << data.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
    return kExitDone;
  }
  const int64_t bytes = write_page(options.output, data);
  std::cout << options.output << ": " << format_bytes(bytes) << "; open it in a browser\n";
  return kExitDone;
}

}  // namespace

void add_report_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<ReportArguments>();
  auto* command =
      app.add_subcommand("report", "Write an HTML page that shows runs: curves, plan, times, memory, failures");
  command->add_option("run", options->words,
                      "Runs: numbers, folders, or latest; several are compared; default: latest. With --plan, fields "
                      "to set, e.g. launch.ranks=4");
  command->add_option("-o,--output", options->output, "File to write")->type_name("FILE")->capture_default_str();
  command->add_option("--plan", options->plan, "Show the plan of a job without starting it")->type_name("JOB.yaml");
  command->add_flag("--json", options->json, "Print the data of the page as JSON instead");
  auto* serve =
      command->add_flag("--serve", options->serve, "Serve the page to browsers on this host, and follow the run");
  command->add_option("--port", options->port, "Port for --serve; default: any free port")->needs(serve);
  command->add_option("--log-dir", options->log_dir, "launch.log_dir of the job")->capture_default_str();
  command->footer(
      R"(The page is a single file that needs no network. It shows everything in a run's folder, whether the run is active, has
failed or was resumed. For a run with --profile it also shows when the tasks of a step ran, and what the ranks waited
for. Values of env: are omitted.

Examples:
  trainctl report                                  write the latest run to report.html
  trainctl report 3 5 log_output/8 -o compare.html
  trainctl report --plan job.yaml launch.ranks=8
  trainctl report --serve                          follow an active run in a browser)");
  command->callback([&chosen, options] { chosen = [options] { return report(*options); }; });
}

}  // namespace trainctl
