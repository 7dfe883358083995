// A job's `command`, started once per rank with the environment that torchrun would set.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/run/launch/stopped_ranks.h"
#include "cli/run/launch/workload.h"
#include "launcher/reserved_port.h"

namespace trainctl {

class CommandWorkload : public Workload, public RankProgram, public WorkloadReports {
 public:
  /// Throws the same errors as require_program.
  explicit CommandWorkload(JobSpec spec);

  const JobSpec& spec() const override { return spec_; }
  nlohmann::ordered_json plan() const override;
  void prepare(int attempt, const RunDirectory& directory) override;
  void configure(Launch& launch) override;
  RankProgram& program() override { return *this; }
  WorkloadReports& reports() override { return *this; }

  ProcessCommand command(const RankPlace& place, int attempt) override;
  void started(int rank, int pid) override;
  void ended(int rank, bool failed) override;

  bool is_up() const override;
  void describe(LiveStatus& status) override;

 private:
  const JobSpec spec_;
  const Cluster cluster_;
  const std::string id_;  ///< TORCHELASTIC_RUN_ID: unique to this run
  int attempt_ = 0;
  std::optional<RunDirectory> directory_;
  std::unique_ptr<ReservedPort> port_;
  StoppedRanks stopped_;
  std::vector<std::string> states_;  ///< one per rank: "starting", "running", "ended", "failed"
};

/// Throws SpecError if the command's folder, program or script does not exist.
void require_program(const JobSpec& spec);

}  // namespace trainctl
