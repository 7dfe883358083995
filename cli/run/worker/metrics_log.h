// Metrics that a run writes for tools while it trains: metrics.jsonl (docs/logs.md) and an event file of TensorBoard
// next to it, with the same numbers, plus settings and histograms.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/base/record_file.h"
#include "engine/ops/moe/expert_load.h"
#include "engine/spec/job_spec.h"
#include "engine/train/files/event_file.h"
#include "engine/train/files/metrics.h"
#include "launcher/run_directory.h"

namespace trainctl {

/// In the run's folder.
inline constexpr const char* kMetricsFile = "metrics.jsonl";

class MetricsLog {
 public:
  /// Reports a line to the user.
  using Report = std::function<void(const std::string&)>;

  /// Writes nothing: for a rank that does not report.
  MetricsLog() = default;
  /// `begin`: append keeps the lines of an earlier attempt, or of a rank that has died.
  MetricsLog(const RunDirectory& directory, RecordFile::Begin begin, Report report);
  /// Writes only lines, to a file of rank `rank`. The launcher adds those that metrics.jsonl lacks
  /// (cli/run/launch/metrics_file.h).
  MetricsLog(const RunDirectory& directory, int rank, Report report);

  bool is_open() const { return lines_.is_open(); }
  void start_up(const nlohmann::ordered_json& json);
  void step(const StepReport& report);
  void epoch(const EpochReport& report);
  void validation(const ValidationReport& report);
  /// Histograms are written only for TensorBoard.
  void histograms(int64_t step, const std::map<std::string, Histogram>& histograms);
  /// The load of the experts of each layer, over a step.
  void experts(int64_t step, const std::map<std::string, ExpertReport>& layers);
  /// Call it last. A run that is killed does not.
  void ended(bool is_success);
  /// Writes any other line of metrics.jsonl.
  void line(const nlohmann::ordered_json& json);
  /// Reports lines that could not be written until the end.
  void report_lost();

 private:
  void write(const std::string& text);

  RecordFile lines_;
  EventFile events_;
  Report report_;
  bool is_refused_ = false;  ///< a write has failed, and the user has been notified
};

}  // namespace trainctl
