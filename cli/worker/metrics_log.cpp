// metrics.jsonl and TensorBoard's events.
#include "cli/worker/metrics_log.h"

#include <nlohmann/json.hpp>
#include <sstream>

namespace trainctl {
namespace {

/// As Markdown, which TensorBoard draws.
std::string job_text(const RunDirectory& directory) {
  std::ostringstream text;
  text << std::ifstream(directory.file("job.yaml")).rdbuf();
  return "```yaml\n" + text.str() + "```\n";
}

void add_metrics(EventScalars& scalars, const std::string& prefix, const MetricValues& metrics) {
  for (size_t i = 0; i < metrics.of.size(); ++i) scalars.emplace_back(prefix + metrics.of[i].name, metrics.values[i]);
}

}  // namespace

MetricsLog::MetricsLog(const RunDirectory& directory, bool joins)
    : lines_(directory.file("metrics.jsonl"), joins ? std::ios::app : std::ios::trunc), events_(directory.path()) {
  if (!joins) events_.write_text("job", job_text(directory));
}

/// Flushed: tools and the launcher follow the file.
void MetricsLog::write(const std::string& text) {
  if (is_open()) lines_ << text << std::endl;
}

void MetricsLog::line(const nlohmann::ordered_json& json) { write(json.dump()); }

void MetricsLog::start_up(const nlohmann::ordered_json& json) {
  line(nlohmann::ordered_json{{"start_up", json}});
  if (is_open()) events_.write(0, {{"start_up/seconds", json.at("seconds").get<double>()}});
}

void MetricsLog::step(const StepReport& report) {
  if (!is_open()) return;
  write(metrics_line(report));
  EventScalars scalars;
  if (report.has_loss) scalars.emplace_back("train/loss", report.loss);
  add_metrics(scalars, "train/", report.metrics);
  scalars.emplace_back("train/learning_rate", report.learning_rate);
  scalars.emplace_back("train/seconds", report.seconds);
  events_.write(report.run_step, scalars);
}

void MetricsLog::epoch(const EpochReport& report) {
  if (!is_open()) return;
  write(metrics_line(report));
  EventScalars scalars;
  if (report.has_loss) scalars.emplace_back("epoch/mean_loss", report.mean_loss);
  add_metrics(scalars, "epoch/mean_", report.metrics);
  scalars.emplace_back("epoch/seconds", report.seconds);
  events_.write(report.run_step, scalars);
}

void MetricsLog::validation(const ValidationReport& report) {
  if (!is_open()) return;
  write(metrics_line(report));
  EventScalars scalars;
  for (const auto& [name, value] : report.values) scalars.emplace_back("validation/" + name, value);
  events_.write(report.run_step, scalars);
}

}  // namespace trainctl
