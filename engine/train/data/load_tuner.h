// Chooses the number of workers and of batches to read ahead, from measurements of the trainer and the workers.
//
//   the trainer waits, the workers are busy       more workers (twice as many, until a window shows no gain)
//   the trainer waits, the workers idle           more batches ahead: some samples take longer than others
//   the trainer never waits, the workers idle     fewer workers, but not fewer than proved too few for this load
//
// It decides once per window of steps, and plain numbers go in: tests need no clock and no threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/train/data/read_state.h"

namespace trainctl {

struct LoadLimits {
  int most_workers = 1;
  int most_ahead = 1;
  int least_workers = 1;
};

struct LoadSetting {
  int workers = 1;
  int ahead = 1;  ///< batches that are read before the trainer asks for them
  bool operator==(const LoadSetting&) const = default;
};

/// "2 workers, 1 batch ahead".
std::string to_string(const LoadSetting& setting);

class LoadTuner {
 public:
  /// A decision is made after kWindow steps, or after kShortWindow steps if the trainer waits for most of the time.
  static constexpr int kWindow = 8, kShortWindow = 4;

  struct Change {
    LoadSetting to;
    std::string reason;  ///< "the trainer waits 43 % of a step, and the workers are busy"
  };

  LoadTuner(LoadSetting start, LoadLimits limits)
      : setting_(start), limits_(limits), least_workers_(limits.least_workers) {}

  /// Called after each step with its seconds, the seconds that the trainer waited for its batch, and the seconds that
  /// all workers together spent reading since the last call. `stages` divides the last of these by stage; all 0 if that
  /// is not known.
  std::optional<Change> after_step(double seconds, double waited, double busy, const StageSeconds& stages = {});
  const LoadSetting& setting() const { return setting_; }

 private:
  std::optional<Change> decide(double step_seconds, double wait_share, double load, const StageSeconds& stages);
  Change go_to(LoadSetting to, std::string reason);

  LoadSetting setting_;
  LoadLimits limits_;
  int steps_ = 0;
  double seconds_ = 0, waited_ = 0, busy_ = 0;  ///< seconds in this window
  StageSeconds stages_;                         ///< time of each stage in this window
  bool is_settling_ = true;                     ///< the window in which the last change takes effect decides nothing
  std::optional<LoadSetting> before_;           ///< the last increase came from here
  double step_before_ = 0;                      ///< seconds of a step then
  bool workers_help_ = true, ahead_helps_ = true;
  int least_workers_;      ///< fewer were too few
  double least_load_ = 0;  ///< for these seconds of reading a step
  int calm_windows_ = 0;
};

}  // namespace trainctl
