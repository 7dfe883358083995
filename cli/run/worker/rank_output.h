// A rank's output while it trains: loss lines and printed tensors to stdout (or tensors/step.N/NAME.npy),
// start_up.json, metrics.jsonl and its like (metrics_log.h, first rank only), collectives.jsonl (run --record), and its
// status for the launcher's progress line.
#pragma once

#include <fstream>
#include <functional>
#include <map>
#include <string>

#include "cli/run/worker/metrics_log.h"
#include "engine/compile/program.h"
#include "engine/compile/report/host_traffic.h"
#include "engine/runtime/comm/batch_board.h"
#include "engine/runtime/comm/rank_board.h"
#include "engine/spec/job_spec.h"
#include "engine/train/files/fingerprint.h"
#include "engine/train/trainer/expert_loads.h"
#include "engine/train/trainer/printed_tensors.h"
#include "engine/train/trainer/trainer.h"
#include "launcher/run_directory.h"

namespace trainctl {

struct RankOutputOptions {
  bool record = false;  ///< run --record
  RecordFile::Begin metrics = RecordFile::Begin::empty;
  bool copies_metrics = false;            ///< for the first rank of the second host, since rank 0's host may be lost
  bool is_apart = false;                  ///< it writes to a different folder than rank 0
  bool has_hosts = false;                 ///< the ranks of other hosts write to other folders
  std::function<bool()> takes_over = {};  ///< asynchronous workers: whether all workers before it are gone
};

class RankOutput : public TrainObserver {
 public:
  /// All arguments must outlive it.
  RankOutput(const PlannedJob& job, const Program& program, RankStatus& status, const RunDirectory& directory,
             const RankOutputOptions& options = {});
  RankOutput(const RankOutput&) = delete;
  RankOutput& operator=(const RankOutput&) = delete;

  /// Call it before training if the first step is not 0.
  void starts_at(int64_t step) { prints_ = step * prints_each_step_; }
  /// Sets print, on_prepared and on_communication, which refer to this object.
  void connect(ExecutorOptions& executor);
  void on_first_step(const StartUpClock& clock) override;
  void on_step(const StepReport& report) override;
  void on_epoch(const EpochReport& report) override;
  void on_validation_progress(int64_t done, int64_t all) override;
  void on_validation(const ValidationReport& report) override;
  void on_loading(int64_t step, const LoadSetting& setting, const std::string& reason) override;
  void on_skipped(int64_t step, const SkippedSamples& skipped) override;
  void on_rollback(int64_t step, int64_t to) override;
  /// The training is over. Writes a line if it was stopped before its end.
  void ended(const TrainResult& result);
  /// Writes the traffic of `steps` steps that this rank counts.
  void write_traffic(const HostTraffic& traffic, int64_t steps) const;
  /// Writes the bytes of tokens that `steps` steps have moved, which this rank counts.
  void write_token_bytes(int64_t bytes, int64_t steps) const;
  /// Writes how many steps were audited, and their overhead (StepAudit::overhead).
  void write_audits(int64_t steps, double overhead) const;
  /// Only rank 0 calls it; see TensorHistograms.
  void write_histograms(int64_t step, const std::map<std::string, Histogram>& histograms);
  /// Only rank 0 calls it; see TensorFingerprints. Adds a line to fingerprints.jsonl.
  void write_fingerprints(int64_t step, const Fingerprints& fingerprints) const;
  /// Only rank 0 calls it; see ExpertLoads.
  void write_expert_loads(int64_t step, const LoadsOfLayers& loads);
  /// Writes the statistics of asynchronous workers.
  void write_workers(const BatchBoard& board);

 private:
  void note_not_finite(const StepReport& report);
  void set_status(const StepReport& report);
  void report_in_place();
  void note_stop(const TrainResult& result);
  void settled_loading(const LoadSetting& setting, const LoadWaits& waits);
  void on_communication(const Instruction& instruction);
  void print_tensor(const Operand& operand, const void* data, int micro_batch);
  void write_text(const Operand& operand, const PrintedPart& part, const void* data, int micro_batch) const;
  void write_npy(const Operand& operand, const PrintedPart& part, const void* data, int64_t step) const;

  const JobSpec& spec_;
  const Program& program_;
  RankStatus& status_;
  const RunDirectory directory_;
  const std::string start_up_path_;
  int64_t to_record_ = 0;  ///< communications that collectives.jsonl still lacks
  const PrintedTensors printed_;
  int64_t prints_each_step_ = 0, prints_ = 0;
  const RankOutputOptions options_;
  MetricsLog metrics_;
  std::ofstream collectives_;
  bool tunes_loading_ = false;                        ///< dataset.autotune has changed something
  double step_seconds_ = 0;                           ///< moving average
  int64_t not_finite_since_ = 0;                      ///< first step with a non-finite loss; 0: none
  std::map<std::string, int64_t> experts_per_token_;  ///< by layer with experts
};

/// Steps from one report of the load of experts to the next.
int64_t steps_between_expert_loads(const TrainSpec& train);

/// File in the run's folder that write_fingerprints adds to.
inline constexpr const char* kFingerprintsFile = "fingerprints.jsonl";

/// File that write_traffic writes for a rank.
inline constexpr const char* kTrafficFile = "traffic.json";

/// Bytes that a rank has sent in its steps, within its host and to other hosts.
struct RankTraffic {
  int64_t steps = 0, within = 0, between = 0;
};
/// nullopt if the rank has not finished, or its file is damaged.
std::optional<RankTraffic> read_traffic(const RunDirectory& directory, int rank);

/// File that write_token_bytes writes for a rank.
inline constexpr const char* kTokenBytesFile = "token_bytes.json";

struct RankTokenBytes {
  int64_t steps = 0, bytes = 0;
};
/// nullopt if the rank has not finished, or its file is damaged.
std::optional<RankTokenBytes> read_token_bytes(const RunDirectory& directory, int rank);

/// File that write_audits writes for a rank.
inline constexpr const char* kAuditsFile = "audits.json";

struct RankAudits {
  int64_t steps = 0;
  double overhead = 0;
};
/// nullopt if the rank has not finished, had no audits, or its file is damaged.
std::optional<RankAudits> read_audits(const RunDirectory& directory, int rank);

/// Writes evaluation.json to the run's folder, and a line: "step 630: loss 0.0991, accuracy 0.9690 (1,000 samples)".
void write_evaluation(const RunDirectory& directory, const std::string& checkpoint, const ValidationReport& report);

}  // namespace trainctl
