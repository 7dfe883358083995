// Records how a run ended, for its own last line and for commands that report it later.
#include "cli/run/launch/run_end.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/json_field.h"
#include "launcher/failure_report.h"
#include "launcher/live_status.h"
#include "launcher/spawn.h"

namespace trainctl {
namespace {

std::string ending(int exit_code, int signal, std::optional<int64_t> step, const RunResult& result) {
  if (signal == 0 && exit_code == kExitEnv && !result.unsaved.empty()) return "finished without saving";
  if (signal == 0 && exit_code == kExitDone && result.validation.ended_early()) {
    const int64_t planned = result.validation.planned_steps;
    return "stopped early at step " + std::to_string(result.step) +
           (planned > result.step ? " of " + std::to_string(planned) : "");
  }
  if (signal == 0) return exit_code == kExitDone ? "done" : "failed";
  return "stopped by " + signal_name(signal) + (step ? " at the end of step " + std::to_string(*step) : "");
}

using Json = nlohmann::ordered_json;

Json read_json(const std::string& path) {
  std::ifstream file(path);
  return Json::parse(file, nullptr, false);
}

}  // namespace

std::string end_text(const RunEnd& end, const std::string& duration) {
  std::string text = end.ending + " after " + duration;
  if (end.exit_code == kExitDone && end.result.validation.ended_early())
    text += ": " + end.result.validation.stop_reason;
  if (const std::string validation = validation_text(end.result.validation.metrics); !validation.empty())
    text += (end.result.validation.ended_early() ? "; " : ", ") + validation;
  if (const int64_t skipped = end.result.skipped_steps; skipped > 0)
    text += ", " + std::to_string(skipped) + (skipped == 1 ? " step" : " steps") + " skipped";
  return text;
}

RunEnd run_end(const Outcome& outcome, const RunResult& result) {
  RunEnd end{ending(outcome.exit_code, outcome.signal, outcome.stopped_at_step, result), outcome.seconds,
             outcome.exit_code};
  end.result = result;
  return end;
}

std::string with_result(const std::string& outcome, const RunResult& result) {
  Json json = Json::parse(outcome);
  if (result.step > 0) {
    json["step"] = result.step;
    json["steps"] = result.steps;
    if (result.loss) put_loss(json, *result.loss);
    put_metrics(json, result.metrics);
    if (result.skipped_steps > 0) json["skipped_steps"] = result.skipped_steps;
  }
  if (!result.validation.metrics.empty()) json["validation"] = to_json(result.validation.metrics);
  if (result.validation.ended_early())
    json["stopped_early"] = {{"reason", result.validation.stop_reason}, {"steps", result.validation.planned_steps}};
  if (result.saved_step) json["saved_step"] = *result.saved_step;
  if (!result.unsaved.empty()) json["unsaved"] = result.unsaved;
  return json.dump() + "\n";
}

std::optional<RunEnd> read_run_end(const RunDirectory& directory) {
  const Json outcome = read_json(directory.file("outcome.json"));
  const auto integer = [&](const char* name) { return field_or(outcome, name, int64_t{0}); };
  if (!outcome.is_object() || !outcome.contains("exit_code") || !outcome["exit_code"].is_number_integer()) return {};
  const int code = outcome["exit_code"].get<int>();
  std::optional<int64_t> step;
  if (outcome.contains("stopped_at_step")) step = integer("stopped_at_step");
  RunResult result = {integer("step"), integer("steps"), loss_of(outcome), metrics_of(outcome)};
  result.skipped_steps = integer("skipped_steps");
  result.unsaved = field_or(outcome, "unsaved", "");
  if (outcome.contains("validation")) result.validation.metrics = validated_metrics_of(outcome["validation"]);
  if (outcome.contains("stopped_early") && outcome["stopped_early"].is_object()) {
    result.validation.stop_reason = field_or(outcome["stopped_early"], "reason", "");
    result.validation.planned_steps = field_or(outcome["stopped_early"], "steps", int64_t{0});
  }
  RunEnd end{ending(code, code > 128 ? code - 128 : 0, step, result), field_or(outcome, "seconds", 0.0), code};
  end.failure = result.unsaved;
  end.result = std::move(result);
  if (outcome.contains("saved_step")) end.result.saved_step = integer("saved_step");
  const Json error = read_json(directory.file("error.json"));
  if (error.is_object()) end.failure = field_or(error, "report", "");
  return end;
}

}  // namespace trainctl
