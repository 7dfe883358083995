// See the header.
#include "engine/train/metrics.h"

#include <fmt/format.h>

#include <cmath>

namespace trainctl {

std::string loss_line(int64_t epoch, int64_t step, double loss) {
  return fmt::format("epoch: {} step: {}, loss is {:.4f}", epoch, step, loss);
}

std::string epoch_line(const EpochReport& report) {
  return fmt::format("epoch: {}, mean loss is {:.4f}", report.epoch, report.mean_loss);
}

std::string metrics_line(const StepReport& report) {
  std::string line =
      fmt::format(R"({{"epoch": {}, "step": {}, "run_step": {})", report.epoch, report.step, report.run_step);
  // JSON has no nan or inf.
  if (report.has_loss) {
    line += std::isfinite(report.loss) ? fmt::format(R"(, "loss": {})", report.loss) : R"(, "loss": null)";
  }
  return line + fmt::format(R"(, "learning_rate": {:.9g}, "seconds": {:.6f}}})", report.learning_rate, report.seconds);
}

}  // namespace trainctl
