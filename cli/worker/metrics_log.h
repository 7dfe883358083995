// What a run reports while it trains, for tools: metrics.jsonl (docs/logs.md) and an event file of TensorBoard beside it,
// with the same numbers, its settings and its histograms.
#pragma once

#include <fstream>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/spec/job_spec.h"
#include "engine/train/event_file.h"
#include "engine/train/metrics.h"
#include "launcher/run_directory.h"

namespace trainctl {

class MetricsLog {
 public:
  /// Of a rank that does not report.
  MetricsLog() = default;
  /// `joins`: behind the lines of a rank that has died.
  MetricsLog(const RunDirectory& directory, bool joins);

  bool is_open() const { return lines_.is_open(); }
  void start_up(const nlohmann::ordered_json& json);
  void step(const StepReport& report);
  void epoch(const EpochReport& report);
  void validation(const ValidationReport& report);
  /// TensorBoard alone draws them.
  void histograms(int64_t step, const std::map<std::string, Histogram>& histograms);
  /// The last call, except of a run that is killed.
  void ended(bool is_success);
  /// Any other line of metrics.jsonl.
  void line(const nlohmann::ordered_json& json);

 private:
  void write(const std::string& text);

  std::ofstream lines_;
  EventFile events_;
};

}  // namespace trainctl
