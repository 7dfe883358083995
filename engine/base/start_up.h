// Where the time goes until a run's first step is finished: phases one after another, so that they add up. The
// launcher begins; each rank that it starts goes on with its clock. What threads do meanwhile stands beside:
//
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
    bool with_others = false;  ///< other ranks had to come: waiting for them is in it
  };

  /// Begins now.
  StartUpClock();

  /// What has gone by since the last phase ended was `name`. Phases of one name add up.
  void ended(std::string_view name) { add(name, false); }
  /// The same, of a phase with_others.
  void met_others(std::string_view name) { add(name, true); }
  /// Another thread's phases, which went on beside ours.
  void had_beside(const StartUpClock& other);
  /// The first step is finished: nothing is added any more.
  void stop() { stopped_ = true; }

  const std::vector<Phase>& phases() const { return phases_; }
  const std::vector<Phase>& beside() const { return beside_; }
  double seconds() const;
  /// Without the phases with_others: the rank with the most is the one that the others waited for.
  double seconds_alone() const;

  /// The clock for another process of this host, and back: "123456789:devices=1000,plan=2000", the end of the last
  /// phase by CLOCK_MONOTONIC, then the phases; all in nanoseconds. Throws EnvError.
  std::string to_text() const;
  static StartUpClock of_text(std::string_view text);

 private:
  void add(std::string_view name, bool with_others);

  int64_t last_;  ///< when the last phase ended
  std::vector<Phase> phases_, beside_;
  bool stopped_ = false;
};

/// For those who may have been given none: nothing where it is null.
inline void phase_ended(StartUpClock* clock, std::string_view name) {
  if (clock != nullptr) clock->ended(name);
}
inline void phase_met_others(StartUpClock* clock, std::string_view name) {
  if (clock != nullptr) clock->met_others(name);
}

}  // namespace trainctl
