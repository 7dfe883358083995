// trainctl ps: lists the runs on this host, whatever their log directories.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/commands/find_run.h"
#include "cli/run/launch/run_end.h"
#include "cli/run/launch/validation_results.h"
#include "cli/run/worker/metrics_log.h"
#include "cli/text/table.h"
#include "engine/base/error.h"
#include "engine/base/measures.h"
#include "engine/base/text.h"
#include "engine/spec/job_spec.h"
#include "launcher/clusters/slurm.h"
#include "launcher/rank_error.h"
#include "launcher/registry.h"
#include "launcher/run_directory.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

struct PsArguments {
  bool all = false;
  bool json = false;
  std::string log_dir = LaunchSpec{}.log_dir;
};

void put_validation(const std::vector<ValidatedMetric>& metrics, Json& json) {
  if (!metrics.empty()) json["validation"] = to_json(metrics);
}

Json describe(const RegisteredRun& run) {
  const LiveStatus status = live_status(run).value_or(LiveStatus{});
  Json json = {{"run", run.run},          {"name", run.name},
               {"state", status.state},   {"ranks", run.ranks},
               {"step", status.step},     {"steps", status.steps},
               {"epoch", status.epoch},   {"epochs", status.epochs},
               {"loss", nullptr},         {"samples_per_second", status.samples_per_second},
               {"seconds_left", nullptr}, {"restarts", status.attempt},
               {"started", run.started},  {"seconds", wall_seconds() - run.started},
               {"log_dir", run.log_dir},  {"job", run.job},
               {"launcher", run.launcher}};
  if (status.loss) put_loss(json, *status.loss);
  put_metrics(json, status.metrics);
  put_validation(read_validations(RunDirectory(run.log_dir, run.run).file(kMetricsFile)).metrics, json);
  if (status.seconds_left) json["seconds_left"] = *status.seconds_left;
  json["rank_states"] = Json::object();
  for (const RankGroup& group : status.ranks) json["rank_states"][group.ranks] = group.doing;
  return json;
}

void add_end(const RunEnd& end, Json& json) {
  json["exit_code"] = end.exit_code;
  json["seconds"] = end.seconds;
  if (end.result.step == 0) return;
  json["step"] = end.result.step;
  json["steps"] = end.result.steps;
  if (end.result.loss) put_loss(json, *end.result.loss);
  put_metrics(json, end.result.metrics);
  put_validation(end.result.validation.metrics, json);
  if (end.result.validation.ended_early()) json["stopped_early"] = end.result.validation.stop_reason;
}

/// Adds the runs of a log directory that have ended.
void add_ended(const std::string& log_dir, Json& all) {
  const std::string folder = std::filesystem::absolute(log_dir).lexically_normal();
  for (const int number : list_runs(folder)) {
    const RunDirectory run(folder, number);
    const RunState state = state_of(run);
    if (state == RunState::running) continue;
    std::ifstream plan(run.file("plan.json"));
    const Json report = Json::parse(plan, nullptr, false);
    const bool named = report.is_object() && report.contains("job") && report["job"].is_string();
    Json json = {{"run", number},
                 {"name", named ? report["job"] : Json("?")},
                 {"state", to_string(state)},
                 {"ranks", run.ranks().size()}};
    if (const int64_t started = start_ns(run); started > 0) json["started"] = static_cast<double>(started) / 1e9;
    if (const std::optional<RunEnd> end = read_run_end(run)) add_end(*end, json);
    json["log_dir"] = folder;
    all.push_back(std::move(json));
  }
}

std::string started(const Json& run) {
  if (!run.contains("started")) return "";
  const auto seconds = static_cast<time_t>(run["started"].get<double>());
  std::tm local{}, today{};
  const time_t now = std::time(nullptr);
  localtime_r(&seconds, &local);
  localtime_r(&now, &today);
  const bool same_day = local.tm_yday == today.tm_yday && local.tm_year == today.tm_year;
  char text[32];
  std::strftime(text, sizeof text, same_day ? "%H:%M:%S" : "%Y-%m-%d %H:%M", &local);
  return text;
}

std::string steps(const Json& run) {
  if (run.value("step", 0) == 0) return "";
  const auto total = run.value("steps", int64_t{0});
  return std::to_string(run["step"].get<int64_t>()) + (total > 0 ? "/" + std::to_string(total) : "");
}

std::string loss(const Json& run) {
  const std::optional<float> value = loss_of(run);
  return value ? format_loss(static_cast<double>(*value)) : "";
}

std::string duration(const Json& run, const char* field) {
  const auto seconds = run.find(field);
  return seconds != run.end() && seconds->is_number() ? format_duration(seconds->get<double>()) : "";
}

std::string rate(const Json& run) {
  const double value = run.value("samples_per_second", 0.0);
  return value > 0 ? with_commas(static_cast<int64_t>(std::lround(value))) : "";
}

void print(const Json& runs) {
  Table table({">run", "name", "state", ">ranks", ">step", ">loss", "validation", ">samples/s", "started", ">time",
               ">left", "log dir"});
  for (const Json& run : runs) {
    table.add({run["run"].dump(), run["name"].get<std::string>(), run["state"].get<std::string>(), run["ranks"].dump(),
               steps(run), loss(run),
               run.contains("validation") ? short_validation_text(validated_metrics_of(run["validation"])) : "",
               rate(run), started(run), duration(run, "seconds"), duration(run, "seconds_left"),
               short_path(run["log_dir"].get<std::string>())});
  }
  std::cout << table.str();
}

/// Prints the Slurm jobs that this user has submitted with trainctl.
void print(const std::vector<clusters::SubmittedJob>& jobs) {
  Table table({">Slurm job", "name", "state", "nodes or reason", ">time", ">left", "log dir"});
  for (const clusters::SubmittedJob& job : jobs)
    table.add({job.id, job.name, job.state, job.reason, job.time, job.time_left, short_path(job.log_dir)});
  std::cout << table.str();
}

int ps(const PsArguments& options) {
  std::string notice;
  const std::vector<clusters::SubmittedJob> submitted = clusters::submitted_jobs(notice);
  Json runs = Json::array();
  if (options.all) add_ended(options.log_dir, runs);
  for (const RegisteredRun& run : running_runs()) runs.push_back(describe(run));
  if (options.json) {
    std::cout << runs.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  } else if (runs.empty() && submitted.empty()) {
    std::cout << "no run is active; trainctl ps -a also lists finished runs in " << options.log_dir << "\n";
  } else {
    if (!runs.empty()) print(runs);
    if (!runs.empty() && !submitted.empty()) std::cout << "\n";
    if (!submitted.empty()) print(submitted);
  }
  if (!notice.empty()) std::cerr << "note: " << notice << "\n";
  return kExitDone;
}

}  // namespace

void add_ps_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<PsArguments>();
  auto* command = app.add_subcommand("ps", "List the active runs on this host");
  command->add_flag("-a,--all", options->all, "Also list finished runs in --log-dir");
  command->add_flag("--json", options->json, "Print a JSON array, including the state of each rank");
  command->add_option("--log-dir", options->log_dir, "Folder of finished runs for --all: launch.log_dir of the job")
      ->capture_default_str();
  command->footer(
      R"(Lists all runs of this user, in whatever folder they were started, and the jobs submitted to Slurm from this host.
time: since the start, or until the end of a finished run; left: estimated time until the last step. For a finished run,
step and loss are those at its end.

Examples:
  trainctl ps
  trainctl ps -a
  trainctl ps --json | jq '.[].rank_states')");
  command->callback([&chosen, options] { chosen = [options] { return ps(*options); }; });
}

}  // namespace trainctl
