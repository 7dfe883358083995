// Writes rank.<N>/trace.json of `run --profile`, once the profiled steps are over.
#pragma once

#include <optional>
#include <string>

#include "engine/train/profile/step_profile.h"
#include "engine/train/trainer/train_observer.h"
#include "launcher/run_directory.h"

namespace trainctl {

class RankProfileFile : public TrainObserver {
 public:
  /// `steps` as in --profile-steps; empty: no profile. `program` must outlive it.
  RankProfileFile(const Program& program, const std::string& steps, const std::string& job,
                  const RunDirectory& directory);
  RankProfileFile(const RankProfileFile&) = delete;
  RankProfileFile& operator=(const RankProfileFile&) = delete;

  /// Records the times of instructions, for ExecutorOptions::timeline; null: no profile.
  Timeline* timeline() { return profile_ ? &*profile_ : nullptr; }
  void on_step(const StepReport& report) override;
  /// Called after training: if it ended within the profiled steps, writes what has been recorded. Throws EnvError.
  void ended();

 private:
  void write();

  std::optional<StepProfile> profile_;
  const std::string job_, path_;
  bool written_ = false;
};

}  // namespace trainctl
