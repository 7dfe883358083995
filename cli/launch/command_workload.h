// A job's `command`, started once a rank with the environment that torchrun would give it.
#pragma once

#include <memory>

#include "cli/launch/workload.h"
#include "launcher/held_port.h"

namespace trainctl {

class CommandWorkload : public Workload {
 public:
  /// Throws SpecError where there is no such program or folder.
  explicit CommandWorkload(JobSpec spec);

  const JobSpec& spec() const override { return spec_; }
  nlohmann::ordered_json plan() const override;
  void prepare(int attempt) override;
  ProcessCommand command(const RankPlace& place, const RunDirectory& directory) override;
  void connect(Launch& launch) override;
  bool is_up() const override;
  void describe(LiveStatus& status) override;

 private:
  const JobSpec spec_;
  const std::string id_;  ///< TORCHELASTIC_RUN_ID: of no other run
  int attempt_ = 0;
  std::unique_ptr<HeldPort> port_;
  std::vector<std::string> states_;  ///< one a rank: "starting", "running", "ended", "failed"
};

/// Throws SpecError where the command's program or folder is not there.
void require_program(const JobSpec& spec);

}  // namespace trainctl
