// See the header.
#include "engine/train/metrics.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "engine/base/text.h"

namespace trainctl {

namespace {

/// Without this a NaN prints as "nan" or "-nan", depending on its sign bit.
double unsigned_nan(double value) { return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value; }

std::string phases_json(const std::vector<StartUpClock::Phase>& phases) {
  std::vector<std::string> items;
  for (const auto& phase : phases) {
    items.push_back(fmt::format(R"("{}": {:.6f})", phase.name, static_cast<double>(phase.ns) / 1e9));
  }
  return "{" + join(items) + "}";
}

}  // namespace

std::string loss_line(int64_t epoch, int64_t step, double loss) {
  return fmt::format("epoch: {} step: {}, loss is {:.4f}", epoch, step, unsigned_nan(loss));
}

std::string epoch_line(const EpochReport& report) {
  return fmt::format("epoch: {}, mean loss is {:.4f}", report.epoch, unsigned_nan(report.mean_loss));
}

std::string metrics_line(const StepReport& report) {
  std::string line =
      fmt::format(R"({{"epoch": {}, "step": {}, "run_step": {})", report.epoch, report.step, report.run_step);
  // JSON has no NaN or infinity.
  if (report.has_loss) {
    line += std::isfinite(report.loss) ? fmt::format(R"(, "loss": {})", report.loss) : R"(, "loss": null)";
  }
  // Printed as the float that the update used, so 0.01 and not 0.00999999978.
  return line + fmt::format(R"(, "learning_rate": {}, "seconds": {:.6f}}})", static_cast<float>(report.learning_rate),
                            report.seconds);
}

std::string start_up_json(const StartUpClock& clock) {
  std::string json = fmt::format(R"({{"seconds": {:.6f}, "alone": {:.6f}, "phases": {})", clock.seconds(),
                                 clock.seconds_alone(), phases_json(clock.phases()));
  if (!clock.beside().empty()) json += R"(, "beside": )" + phases_json(clock.beside());
  return json + "}";
}

}  // namespace trainctl
