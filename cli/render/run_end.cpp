#include "cli/render/run_end.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "launcher/spawn.h"

namespace trainctl {
namespace {

std::string ending(int exit_code, int signal, std::optional<int64_t> step) {
  if (signal == 0) return exit_code == kExitDone ? "done" : "failed";
  return "stopped by " + signal_name(signal) + (step ? " at the end of step " + std::to_string(*step) : "");
}

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file, nullptr, false);
}

}  // namespace

RunEnd run_end(const Outcome& outcome) {
  return {ending(outcome.exit_code, outcome.signal, outcome.stopped_at_step), outcome.seconds, outcome.exit_code};
}

std::optional<RunEnd> read_run_end(const RunDirectory& directory) {
  const nlohmann::json outcome = read_json(directory.file("outcome.json"));
  if (!outcome.is_object() || !outcome.contains("exit_code")) return {};
  const int code = outcome.value("exit_code", 0);
  std::optional<int64_t> step;
  if (outcome.contains("stopped_at_step")) step = outcome.value("stopped_at_step", int64_t{0});
  RunEnd end{ending(code, code > 128 ? code - 128 : 0, step), outcome.value("seconds", 0.0), code};
  const nlohmann::json error = read_json(directory.file("error.json"));
  if (error.is_object()) end.failure = error.value("report", "");
  return end;
}

}  // namespace trainctl
