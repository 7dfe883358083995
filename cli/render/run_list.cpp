// Lists runs from their folders.
#include "cli/render/run_list.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "cli/render/log_printer.h"
#include "cli/run/launch/run_end.h"
#include "cli/text/table.h"
#include "engine/base/measures.h"
#include "engine/base/printable.h"
#include "launcher/live_status.h"
#include "launcher/log_tail.h"
#include "launcher/run_directory.h"

namespace trainctl {
namespace {

constexpr std::string_view kLastLine = "last line of rank 0";

std::string local_time(int64_t ns) {
  if (ns == 0) return "?";
  const time_t seconds = ns / 1'000'000'000;
  char text[32];
  std::tm local{};
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", localtime_r(&seconds, &local));
  return text;
}

/// "440/440", or "12" if the total is unknown; empty without steps.
std::string steps(const RunResult& result) {
  if (result.step == 0) return "";
  return std::to_string(result.step) + (result.steps > 0 ? "/" + std::to_string(result.steps) : "");
}

/// The last line of rank 0, for a table cell.
std::string last_line(const RunDirectory& run) {
  std::string line = tail_of_file(run.rank_file(0, "stdout"), 1);
  line = terminal_line(std::string_view(line).substr(line.rfind('\n') + 1));
  std::replace(line.begin(), line.end(), '\t', ' ');
  return line;
}

}  // namespace

std::string run_summary(const RunDirectory& run) {
  const std::optional<RunEnd> end = read_run_end(run);
  if (!end) return "";
  std::string text =
      "--- run " + std::to_string(run.run()) + ": " + end->ending + " after " + format_duration(end->seconds);
  if (end->result.step > 0) text += ", step " + steps(end->result);
  if (end->result.validation.ended_early()) text += " (" + end->result.validation.stop_reason + ")";
  if (end->result.loss) text += ", loss " + format_loss(static_cast<double>(*end->result.loss));
  for (const auto& metric : end->result.metrics) text += ", " + metric_text(metric);
  if (const std::string validation = validation_text(end->result.validation.metrics); !validation.empty())
    text += "; " + validation;
  return text + " ---\n";
}

std::string run_table(const std::string& log_dir, int width) {
  const std::vector<int> runs = list_runs(log_dir);
  if (runs.empty()) return "no runs in " + log_dir + "\n";
  Table table({">run", "state", ">ranks", "started", ">time", ">step", ">loss", "validation", std::string(kLastLine)});
  for (const int number : runs) {
    const RunDirectory run(log_dir, number);
    const RunEnd end = read_run_end(run).value_or(RunEnd{});
    table.add({std::to_string(number), std::string(to_string(state_of(run))), std::to_string(run.ranks().size()),
               local_time(start_ns(run)), end.seconds > 0 ? format_duration(end.seconds) : "", steps(end.result),
               end.result.loss ? format_loss(static_cast<double>(*end.result.loss)) : "",
               short_validation_text(end.result.validation.metrics), last_line(run)});
  }
  std::string text = table.str(), cut;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    cut += text.substr(at, std::min(end - at, static_cast<size_t>(width))) + "\n";
    at = end + 1;
  }
  return cut;
}

std::string run_lines(const std::string& log_dir) {
  std::string text;
  for (const int number : list_runs(log_dir)) {
    const RunDirectory run(log_dir, number);
    const std::string started = format_time(start_ns(run));
    nlohmann::ordered_json json = {{"run", number}, {"state", to_string(state_of(run))}, {"ranks", run.ranks().size()}};
    json["started"] = started.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(started);
    if (const std::optional<RunEnd> end = read_run_end(run)) {
      json["seconds"] = end->seconds;
      if (end->result.step > 0) json["step"] = end->result.step;
      if (end->result.loss) put_loss(json, *end->result.loss);
      put_metrics(json, end->result.metrics);
      if (!end->result.validation.metrics.empty()) json["validation"] = to_json(end->result.validation.metrics);
    }
    json["path"] = run.path();
    json["last_line"] = last_line(run);
    text += json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  return text;
}

}  // namespace trainctl
