// Measures the time until a run's first finished step: phases one after another, so that they add up. The launcher
// begins; each rank continues the clock that it inherits. Phases of other threads are kept separately:
//   launcher   devices ─ plan ─╮
//   rank                       ╰ launch ─ program ─ data ─ CUDA ─ kernels ─ NCCL ─ copy engines ─ weights ─ step
//   thread                                               ╰ CUDA ─ NCCL world ─ … ╯
//
// The phase "NCCL" is then only what the rank still had to wait.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl {

/// Used by one thread.
class StartUpClock {
 public:
  struct Phase {
    std::string name;
    int64_t ns = 0;
    bool with_others = false;  ///< includes waiting for other ranks
  };

  /// Starts the clock now.
  StartUpClock();

  /// The time since the last phase ended belongs to `name`. Phases of one name add up.
  void ended(std::string_view name) { add(name, false); }
  /// The same, for a phase that includes waiting for other ranks.
  void ended_together(std::string_view name) { add(name, true); }
  /// Adds the phases of another thread, which ran at the same time.
  void add_concurrent(const StartUpClock& other);
  /// The first step is finished: later calls add nothing.
  void stop() { stopped_ = true; }

  const std::vector<Phase>& phases() const { return phases_; }
  const std::vector<Phase>& beside() const { return beside_; }
  double seconds() const;
  /// The seconds without the phases with_others: the rank with the largest value is the one that the others waited for.
  double seconds_alone() const;

  /// Passes the clock to another process of this host: "123456789:devices=1000,plan=2000" is the end of the last phase
  /// by CLOCK_MONOTONIC, then the phases; all in nanoseconds. Parsing throws EnvError.
  std::string to_text() const;
  static StartUpClock of_text(std::string_view text);

 private:
  void add(std::string_view name, bool with_others);

  int64_t last_;  ///< when the last phase ended
  std::vector<Phase> phases_, beside_;
  bool stopped_ = false;
};

/// Call the same method of `clock`; do nothing if it is null.
inline void phase_ended(StartUpClock* clock, std::string_view name) {
  if (clock != nullptr) clock->ended(name);
}
inline void phase_ended_together(StartUpClock* clock, std::string_view name) {
  if (clock != nullptr) clock->ended_together(name);
}

}  // namespace trainctl
