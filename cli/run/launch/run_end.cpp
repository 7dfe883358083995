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

std::string ending(int exit_code, int signal, std::optional<int64_t> step, bool is_unsaved) {
  if (signal == 0 && exit_code == kExitEnv && is_unsaved) return "finished without saving";
  if (signal == 0) return exit_code == kExitDone ? "done" : "failed";
  return "stopped by " + signal_name(signal) + (step ? " at the end of step " + std::to_string(*step) : "");
}

using Json = nlohmann::ordered_json;

Json read_json(const std::string& path) {
  std::ifstream file(path);
  return Json::parse(file, nullptr, false);
}

}  // namespace

RunEnd run_end(const Outcome& outcome, const RunResult& result) {
  RunEnd end{ending(outcome.exit_code, outcome.signal, outcome.stopped_at_step, !result.unsaved.empty()),
             outcome.seconds, outcome.exit_code};
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
  }
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
  const std::string unsaved = field_or(outcome, "unsaved", "");
  RunEnd end{ending(code, code > 128 ? code - 128 : 0, step, !unsaved.empty()), field_or(outcome, "seconds", 0.0), code};
  end.failure = unsaved;
  end.result = {integer("step"), integer("steps"), loss_of(outcome), metrics_of(outcome)};
  if (outcome.contains("saved_step")) end.result.saved_step = integer("saved_step");
  const Json error = read_json(directory.file("error.json"));
  if (error.is_object()) end.failure = field_or(error, "report", "");
  end.result.unsaved = unsaved;
  return end;
}

}  // namespace trainctl
