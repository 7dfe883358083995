// Writes metrics.jsonl and TensorBoard events.
#include "cli/run/worker/metrics_log.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/spec/job_fields.h"
#include "engine/spec/parse.h"

namespace trainctl {
namespace {

std::string job_of(const RunDirectory& directory) {
  std::ostringstream text;
  text << std::ifstream(directory.file("job.yaml")).rdbuf();
  return text.str();
}

/// Settings of the job, without the network, files and launch options, which would take too many columns.
bool is_setting(const std::string& path) {
  static constexpr std::string_view kSections[] = {"dataset.", "loss.", "optimizer.", "parallel.", "train."};
  static constexpr std::string_view kFields[] = {"precision", "gradient_precision", "seed",
                                                 "loss",      "launch.ranks",       "launch.device"};
  static constexpr std::string_view kNot[] = {"train.checkpoint.", "train.histograms", "train.log_every",
                                              "parallel.strategies.", "parallel.stage_config."};
  const auto starts = [&](std::string_view section) { return path.starts_with(section); };
  return std::find(std::begin(kFields), std::end(kFields), path) != std::end(kFields) ||
         (std::any_of(std::begin(kSections), std::end(kSections), starts) &&
          std::none_of(std::begin(kNot), std::end(kNot), starts));
}

HyperParameter::Value typed(const std::string& text) {
  if (text == "true" || text == "false") return text == "true";
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return number;
  return text;
}

std::vector<HyperParameter> settings_of(const std::string& job) {
  std::vector<HyperParameter> settings;
  for (const auto& [path, text] : job_fields(job, "job.yaml"))
    if (is_setting(path)) settings.push_back({path, typed(text)});
  return settings;
}

void add_metrics(EventScalars& scalars, const std::string& prefix, const MetricValues& metrics) {
  for (size_t i = 0; i < metrics.of.size(); ++i) scalars.emplace_back(prefix + metrics.of[i].name, metrics.values[i]);
}

}  // namespace

MetricsLog::MetricsLog(const RunDirectory& directory, RecordFile::Begin begin, Report report)
    : events_(directory.path()), report_(std::move(report)) {
  const std::string path = directory.file(kMetricsFile);
  std::error_code not_there;
  const bool has_begun =
      begin == RecordFile::Begin::append && std::filesystem::file_size(path, not_there) > 0 && !not_there;
  lines_ = RecordFile(path, begin);
  if (has_begun) return;
  const std::string job = job_of(directory);
  events_.write_text("job", "```yaml\n" + hide_env(job) + "```\n");  // Markdown
  events_.write_session_start(settings_of(job));
}

MetricsLog::MetricsLog(const RunDirectory& directory, int rank, Report report)
    : lines_(directory.rank_file(rank, kMetricsFile)), report_(std::move(report)) {}

/// Writes a whole line at once, since tools and the launcher follow the file.
void MetricsLog::write(const std::string& text) {
  if (!is_open()) return;
  const bool was_refused = std::exchange(is_refused_, !lines_.write(text + "\n"));
  if (is_refused_ && !was_refused)
    report_(std::string("cannot write ") + kMetricsFile + ": " + lines_.problem() + "; its lines are kept in memory");
  if (!is_refused_ && was_refused)
    report_(std::string(kMetricsFile) + " is being written again" +
            (lines_.lost() == 0 ? "" : "; " + std::to_string(lines_.lost()) + " lines were lost"));
}

void MetricsLog::report_lost() {
  if (const auto missing = lines_.lost() + static_cast<int64_t>(lines_.kept()); is_open() && missing > 0)
    report_(std::string(kMetricsFile) + " lacks " + std::to_string(missing) +
            " lines that could not be written to disk");
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
  if (report.loss_scale > 0) scalars.emplace_back("train/loss_scale", report.loss_scale);
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

void MetricsLog::histograms(int64_t step, const std::map<std::string, Histogram>& histograms) {
  if (!is_open()) return;
  events_.write_histograms(step, histograms);
  EventScalars broken;
  for (const auto& [name, histogram] : histograms)
    if (histogram.not_finite() > 0)
      broken.emplace_back("not_finite/" + name, static_cast<double>(histogram.not_finite()));
  events_.write(step, broken);
}

/// {"kind":"loads","run_step":20,"max_load":1.4,"min_load":0.5,"entropy":1.9,"balance_loss":1.02,"dropped":0.0}: over
/// all layers. TensorBoard has each of them as well.
void MetricsLog::experts(int64_t step, const std::map<std::string, ExpertReport>& layers) {
  if (!is_open() || layers.empty()) return;
  ExpertReport all = layers.begin()->second;
  all.entropy = all.balance = all.dropped = 0;
  const auto count = static_cast<double>(layers.size());
  EventScalars scalars;
  const auto add = [&](const std::string& name, const ExpertReport& of) {
    scalars.emplace_back("experts/max_load" + name, of.max_load);
    scalars.emplace_back("experts/min_load" + name, of.min_load);
    scalars.emplace_back("experts/entropy" + name, of.entropy);
    scalars.emplace_back("experts/balance_loss" + name, of.balance);
    scalars.emplace_back("experts/dropped" + name, of.dropped);
  };
  for (const auto& [layer, of] : layers) {
    add("/" + layer, of);
    all.max_load = std::max(all.max_load, of.max_load);
    all.min_load = std::min(all.min_load, of.min_load);
    all.entropy += of.entropy / count;
    all.balance += of.balance / count;
    all.dropped += of.dropped / count;
  }
  add("", all);
  line({{"kind", "loads"},
        {"run_step", step},
        {"max_load", all.max_load},
        {"min_load", all.min_load},
        {"entropy", all.entropy},
        {"balance_loss", all.balance},
        {"dropped", all.dropped}});
  events_.write(step, scalars);
}

void MetricsLog::ended(bool is_success) {
  if (is_open()) events_.write_session_end(is_success);
}

}  // namespace trainctl
