// Reports of a run, step by step.
#include "engine/train/files/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/measures.h"
#include "engine/base/printable.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

namespace {

/// Floats print as the shortest text that reads back as the same float: a loss of 2.1f is 2.1, not 2.0999999046325684.
using FloatJson = nlohmann::basic_json<nlohmann::ordered_map, std::vector, std::string, bool, int64_t, uint64_t, float>;

double whole_microseconds(double seconds) { return std::round(seconds * 1e6) / 1e6; }

/// dump() writes null for nan and inf, which JSON does not have.
template <class Json, class Float>
void put_loss(Json& line, const char* name, Float loss) {
  line[name] = loss;
  if (const std::string_view why = not_finite_name(static_cast<double>(loss)); !why.empty()) line["not_finite"] = why;
}

/// Scales are mostly powers of two, and the shortest text of a float would not show all of their digits.
void put_scale(FloatJson& line, double scale) {
  if (scale >= 1 && scale < 0x1p53 && scale == std::floor(scale))
    line["loss_scale"] = static_cast<int64_t>(scale);
  else
    line["loss_scale"] = static_cast<float>(scale);
}

template <class Json>
void put_metrics(Json& line, const char* prefix, const MetricValues& metrics) {
  for (size_t i = 0; i < metrics.of.size(); ++i) {
    using Float = typename Json::number_float_t;
    line[prefix + metrics.of[i].name] = static_cast<Float>(metrics.values[i]);
  }
}

nlohmann::ordered_json phases_json(const std::vector<StartUpClock::Phase>& phases) {
  auto json = nlohmann::ordered_json::object();
  for (const auto& phase : phases) json[phase.name] = whole_microseconds(static_cast<double>(phase.ns) / 1e9);
  return json;
}

}  // namespace

std::string to_string(const MetricValues& metrics) {
  std::string text;
  for (size_t i = 0; i < metrics.of.size(); ++i)
    text += fmt::format("{}{} {:.4f}", i == 0 ? "" : ", ", metrics.of[i].name, metrics.values[i]);
  return text;
}

float total_loss(float loss, std::span<const ReportedMetric> metrics, std::span<const float> sums) {
  for (size_t i = 0; i < metrics.size(); ++i)
    if (metrics[i].adds_to_loss) loss += sums[i];
  return loss;
}

EpochMeans::EpochMeans(const EpochSums& sums, std::span<const ReportedMetric> of)
    : loss_(sums.loss), sums_{of, sums.metrics}, count_(sums.count) {}

void EpochMeans::add(const StepReport& report) {
  loss_ += static_cast<double>(report.loss);
  sums_.of = report.metrics.of;
  for (size_t i = 0; i < sums_.of.size(); ++i) sums_.values[i] += report.metrics.values[i];
  ++count_;
}

MetricValues EpochMeans::metrics() const {
  MetricValues means = sums_;
  for (double& value : means.values) value = mean(value);
  return means;
}

std::string loss_line(int64_t epoch, int64_t step, double loss) {
  return fmt::format("epoch: {} step: {}, loss is {}", epoch, step, format_loss(loss));
}

std::string epoch_line(const EpochReport& report) {
  const std::string metrics = to_string(report.metrics);
  return fmt::format("epoch: {}, mean loss is {}{}{}", report.epoch, format_loss(report.mean_loss),
                     metrics.empty() ? "" : ", ", metrics);
}

std::string metrics_line(const StepReport& report) {
  FloatJson line = {{"epoch", report.epoch}, {"step", report.step}, {"run_step", report.run_step}};
  if (report.has_loss) put_loss(line, "loss", report.loss);
  put_metrics(line, "", report.metrics);
  line["learning_rate"] = static_cast<float>(report.learning_rate);
  if (report.loss_scale > 0) put_scale(line, report.loss_scale);
  line["seconds"] = static_cast<float>(whole_microseconds(report.seconds));
  return line.dump();
}

std::string metrics_line(const EpochReport& report) {
  nlohmann::ordered_json line = {{"epoch_end", report.epoch}, {"last_step", report.run_step}, {"steps", report.steps}};
  if (report.has_loss) put_loss(line, "mean_loss", report.mean_loss);
  put_metrics(line, "mean_", report.metrics);
  line["epoch_seconds"] = whole_microseconds(report.seconds);
  return line.dump();
}

std::optional<double> ValidationReport::value(const std::string& metric) const {
  for (const auto& [name, number] : values)
    if (name == metric) return number;
  return std::nullopt;
}

BestValues best_after(const BestValues& best, const ValidationReport& report) {
  BestValues after;
  for (const auto& [name, value] : report.values) {
    const auto known = std::find_if(best.begin(), best.end(), [&](const auto& b) { return b.first == name; });
    BestValue now = known == best.end() ? BestValue{} : known->second;
    const bool is_first = now.step == 0 || (std::isnan(now.value) && !std::isnan(value));
    if (is_first || is_better(name, value, now.value))
      now = {.value = value, .step = report.run_step};
    else
      ++now.since;
    after.emplace_back(name, now);
  }
  return after;
}

std::string values_text(const ValidationReport& report) {
  std::string text;
  for (const auto& [name, number] : report.values)
    text += fmt::format("{}{} {:.4f}", text.empty() ? "" : ", ", name, number);
  return text;
}

std::string validation_line(const ValidationReport& report) {
  const std::string step = report.is_whole_epoch ? "" : fmt::format(" step {}", report.epoch_step);
  return fmt::format("validation epoch {}{}: {}", report.epoch, step, values_text(report));
}

std::string metrics_line(const ValidationReport& report) {
  nlohmann::ordered_json line = {
      {"kind", "validation"}, {"epoch", report.epoch}, {"run_step", report.run_step}, {"samples", report.samples}};
  for (const auto& [name, number] : report.values) put_loss(line, name.c_str(), number);
  line["seconds"] = whole_microseconds(report.seconds);
  for (const ValidationText& text : report.texts)
    line["texts"].push_back({{"prompt", text.prompt}, {"text", text.text}});
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::vector<std::string> text_lines(const ValidationReport& report) {
  std::vector<std::string> lines;
  for (const ValidationText& text : report.texts)
    lines.push_back(
        fmt::format("validation text {}: {} -> {}", lines.size() + 1, printable(text.prompt), printable(text.text)));
  return lines;
}

std::string not_finite_line(const StepReport& report) {
  return fmt::format("loss is {} since step {} (epoch {}, step {}){}",
                     not_finite_name(static_cast<double>(report.loss)), report.run_step, report.epoch, report.step,
                     report.sample.empty() ? "" : ": " + report.sample);
}

nlohmann::ordered_json start_up_json(const StartUpClock& clock) {
  nlohmann::ordered_json json = {{"seconds", whole_microseconds(clock.seconds())},
                                 {"alone", whole_microseconds(clock.seconds_alone())},
                                 {"phases", phases_json(clock.phases())}};
  if (!clock.beside().empty()) json["beside"] = phases_json(clock.beside());
  return json;
}

}  // namespace trainctl
