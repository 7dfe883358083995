// What a rank of `run --profile` leaves: rank.<N>/trace.json, once the profiled steps are over.
#pragma once

#include <optional>
#include <string>

#include "engine/train/profile/step_profile.h"
#include "engine/train/trainer.h"
#include "launcher/run_directory.h"

namespace trainctl {

class RankProfileFile {
 public:
  /// `steps` as --profile-steps gives them; empty: no profile. `program` must outlive it.
  RankProfileFile(const Program& program, const std::string& steps, const std::string& job,
                  const RunDirectory& directory);
  RankProfileFile(const RankProfileFile&) = delete;
  RankProfileFile& operator=(const RankProfileFile&) = delete;

  /// They refer to this object.
  void add_to(TrainHooks& hooks);
  /// The training is over: writes what there is, where it ended among the profiled steps. Throws EnvError.
  void ended();

 private:
  void write();

  std::optional<StepProfile> profile_;
  const std::string job_, path_;
  bool written_ = false;
};

}  // namespace trainctl
