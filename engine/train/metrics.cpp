// See the header.
#include "engine/train/metrics.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace trainctl {

namespace {

/// Without this a NaN prints as "nan" or "-nan", depending on its sign bit.
double unsigned_nan(double value) { return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value; }

/// Floats print as the shortest text that reads back as the same float: a loss of 2.1f is 2.1, not 2.0999999046325684.
using FloatJson = nlohmann::basic_json<nlohmann::ordered_map, std::vector, std::string, bool, int64_t, uint64_t, float>;

double whole_microseconds(double seconds) { return std::round(seconds * 1e6) / 1e6; }

nlohmann::ordered_json phases_json(const std::vector<StartUpClock::Phase>& phases) {
  auto json = nlohmann::ordered_json::object();
  for (const auto& phase : phases) json[phase.name] = whole_microseconds(static_cast<double>(phase.ns) / 1e9);
  return json;
}

}  // namespace

std::string loss_line(int64_t epoch, int64_t step, double loss) {
  return fmt::format("epoch: {} step: {}, loss is {:.4f}", epoch, step, unsigned_nan(loss));
}

std::string epoch_line(const EpochReport& report) {
  return fmt::format("epoch: {}, mean loss is {:.4f}", report.epoch, unsigned_nan(report.mean_loss));
}

std::string metrics_line(const StepReport& report) {
  FloatJson line = {{"epoch", report.epoch}, {"step", report.step}, {"run_step", report.run_step}};
  if (report.has_loss) line["loss"] = report.loss;  // dump() writes null for nan and inf, which JSON does not have
  line["learning_rate"] = static_cast<float>(report.learning_rate);
  line["seconds"] = static_cast<float>(whole_microseconds(report.seconds));
  return line.dump();
}

nlohmann::ordered_json start_up_json(const StartUpClock& clock) {
  nlohmann::ordered_json json = {{"seconds", whole_microseconds(clock.seconds())},
                                 {"alone", whole_microseconds(clock.seconds_alone())},
                                 {"phases", phases_json(clock.phases())}};
  if (!clock.beside().empty()) json["beside"] = phases_json(clock.beside());
  return json;
}

}  // namespace trainctl
