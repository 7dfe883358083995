// Lets ranks, launcher and the process that writes checkpoints agree on saves without a collective. Placed in shared
// memory; all zero is the start. Steps count from 0: a save of step s is the state before that step.
//
//   launcher   ask                    a save as soon as possible
//   ranks      saves_before(s)        the first rank that comes to step s decides for all whether it is saved
//              copied(rank, s)        this rank's part of it is in the memory that the writer reads
//              report_position(s, p)  rank 0: other facts (losses of the epoch so far)
//              report_validated(s, p) rank 0: the validation of that state, which may end after the save
//   writer     ready                  all ranks have copied: it writes, and then `finished`
//              try_failed             writing failed; the writer tries again
//   ranks      await_room(s)          the last state must be saved: a save that cannot be written is given up
//
// There is at most one save in progress: the next one begins after it is finished, so a slow disk delays the next save
// but never a step.
//
// On several hosts the launcher decides, and each host's board has its answers. A rank asks it only at a step at which
// all ranks ask, whatever their host (a multiple of train.checkpoint's steps, the end), and waits for the answer. For a
// save at any other time the launcher holds the gates (step_gate.h) and answers before it releases them. The launcher
// gathers the ranks' images itself, in one of kSets sets of memory, and offers what is whole to the writer:
//
//   launcher   offer(s, set)          in place of a save that was offered before and is not taken
//   writer     take_offer             it is the save under way, and then `finished`
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "engine/base/best_value.h"
#include "engine/base/loss_scale_state.h"
#include "engine/base/plateau_state.h"
#include "engine/graph/graph.h"

namespace trainctl {

class SaveBoard {
 public:
  /// Facts about the steps before the saved state.
  struct Position {
    double loss_sum = 0;  ///< sum of the loss over the epoch's steps so far; below, sums of the metrics
    std::array<double, kMostMetrics> metric_sums{};
    int64_t steps = 0;  ///< number of steps that were summed
    bool is_finite = true;
    /// True if the state that is saved is validated; `validation` is its reported loss and metrics.
    bool is_validated = false;
    std::array<double, kMostMetrics + 1> validation{};
    std::array<BestValue, kMostMetrics + 1> best{};  ///< best values so far of the same numbers
    PlateauState plateau;                            ///< after that validation
    LossScaleState loss_scale;
  };

  void ask() { asked_.fetch_add(1, std::memory_order_relaxed); }
  /// Returns how often a save was asked for.
  uint64_t asked() const { return asked_.load(std::memory_order_relaxed); }

  /// True if the state before `step` is saved: the same answer for each rank. Ranks ask in the order of steps, and are
  /// less than kAhead steps apart. The first rank that asks decides: `due(last)` says whether to save if the last save
  /// was before step `last` (-1: there was none).
  template <class Due>
  bool saves_before(int64_t step, const Due& due) {
    if (is_decided_elsewhere()) return answer_for(step, due);
    std::atomic<uint64_t>& slot = decisions_[static_cast<size_t>(step) % kAhead];
    const uint64_t yes = word(step) << 1 | 1, no = word(step) << 1;
    uint64_t seen = slot.load(std::memory_order_acquire);
    if (seen >> 1 == word(step)) return (seen & 1) != 0;
    const uint64_t asked = asked_.load(std::memory_order_relaxed);
    const bool wanted = asked != taken_.load(std::memory_order_relaxed) || due(last_step());
    uint64_t idle = 0;
    const bool began = wanted && saving_.compare_exchange_strong(idle, word(step), std::memory_order_acq_rel);
    const bool saves = began || (wanted && idle == word(step));
    if (slot.compare_exchange_strong(seen, saves ? yes : no, std::memory_order_acq_rel)) {
      if (saves) {
        taken_.store(asked, std::memory_order_relaxed);
        last_.store(word(step), std::memory_order_relaxed);
      }
      return saves;
    }
    const bool decided = (seen & 1) != 0;
    uint64_t mine = word(step);
    if (began && !decided) saving_.compare_exchange_strong(mine, 0, std::memory_order_acq_rel);
    return decided;
  }

  // Functions of the board of one of several hosts.

  /// From now on the launcher answers, by decided(). Each rank calls `due`, which must be the same on all hosts.
  /// `steps_await`: a step after a save counts as done only when that save is finished (steps_await_saves).
  void decide_elsewhere(bool steps_await) { elsewhere_.store(steps_await ? 2 : 1, std::memory_order_relaxed); }
  bool is_decided_elsewhere() const { return elsewhere_.load(std::memory_order_relaxed) != 0; }
  bool steps_await_saves() const { return elsewhere_.load(std::memory_order_relaxed) == 2; }
  /// The newest step for which a rank awaits the launcher's answer; -1: none.
  int64_t wanted() const { return step_of(wanted_.load(std::memory_order_acquire)); }
  /// The launcher's answer. If it is no, the next save by steps is due as if there had been a save, so that all hosts
  /// ask again at the same step.
  void decided(int64_t step, bool saves) {
    if (saves) saving_.store(word(step), std::memory_order_relaxed);
    last_.store(word(step), std::memory_order_relaxed);
    decisions_[static_cast<size_t>(step) % kAhead].store(word(step) << 1 | (saves ? 1 : 0), std::memory_order_release);
  }

  /// The step before which the state is being saved; -1: no save is under way.
  int64_t saving() const { return step_of(saving_.load(std::memory_order_acquire)); }
  /// The step of the last save that began; -1: none.
  int64_t last_step() const { return step_of(last_.load(std::memory_order_relaxed)); }
  /// A resumed run begins with the state of a save.
  void begin_at(int64_t step) { last_.store(word(step), std::memory_order_relaxed); }

  void report_position(int64_t step, const Position& position) {
    position_ = position;
    reported_.store(word(step), std::memory_order_release);
  }
  /// Complete once report_position() was called for the step that is being saved.
  bool is_reported(int64_t step) const { return reported_.load(std::memory_order_acquire) == word(step); }
  const Position& position() const { return position_; }

  /// Rank 0: the state of a save that began before its validation has been validated. The writer adds it to the
  /// checkpoint that it has written or is going to write.
  void report_validated(int64_t step, const Position& position) {
    Validated& slot = validated_[validations_.load(std::memory_order_relaxed) % kValidations];
    slot.step.store(0, std::memory_order_release);
    slot.position = position;
    slot.step.store(word(step), std::memory_order_release);
    validations_.fetch_add(1, std::memory_order_release);
  }
  /// The step of the last report_validated(); -1: none.
  int64_t validated() const {
    const uint64_t count = validations_.load(std::memory_order_acquire);
    return count == 0 ? -1 : step_of(validated_[(count - 1) % kValidations].step.load(std::memory_order_acquire));
  }
  /// Null unless report_validated() was called for that step, which must be one of the last two saves.
  const Position* validation_of(int64_t step) const {
    for (const Validated& slot : validated_)
      if (slot.step.load(std::memory_order_acquire) == word(step)) return &slot.position;
    return nullptr;
  }

  // Several hosts: the launcher's board. One process offers, another takes, between two saves.

  static constexpr int kSets = 3;  ///< one is written, one is offered, one is filled
  /// The images of a set are whole.
  void offer(int64_t step, int set, const Position& position) {
    positions_[static_cast<size_t>(set)] = position;
    offered_.store(word(step) << 2 | static_cast<uint64_t>(set), std::memory_order_seq_cst);
  }
  /// False: nothing is offered. A writer that is killed in here leaves what another can take or finish.
  bool take_offer() {
    for (uint64_t seen = offered_.load(); seen != 0;) {
      set_.store((seen & 3) + 1);
      position_ = positions_[seen & 3];
      reported_.store(seen >> 2);
      saving_.store(seen >> 2);
      if (offered_.compare_exchange_strong(seen, 0)) return true;  // else a newer one is offered
    }
    return false;
  }
  /// Returns whether the save under way was offered: its images are whole.
  bool was_offered() const { return set_.load() != 0; }
  /// Returns the set that contains the images of the save under way.
  int set() const { return std::max(0, static_cast<int>(set_.load()) - 1); }
  /// Returns a set that is neither offered nor being written.
  int free_set() const {
    const uint64_t offered = offered_.load();  // before saving_: what is taken meanwhile counts twice
    const int written = saving() >= 0 ? set() : -1;
    for (int one = 0;; ++one)
      if (one != written && (offered == 0 || static_cast<uint64_t>(one) != (offered & 3))) return one;
  }
  /// Returns whether something is offered, or written.
  bool is_busy() const { return offered_.load() != 0 || saving() >= 0; }

  /// The ranks have reached the end, step `step`, and wait for the save under way. It is not tried again once it fails.
  void await_room(int64_t step) { awaits_room_.store(word(step), std::memory_order_relaxed); }
  /// The step of await_room(); -1: nothing waits.
  int64_t awaits_room() const { return step_of(awaits_room_.load(std::memory_order_relaxed)); }
  /// Returns whether a later state waits for the memory of the save under way.
  bool must_give_way() const { return awaits_room() > saving(); }
  /// The writer: the disk has refused the save under way, which is not finished.
  void try_failed() { failed_tries_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t failed_tries() const { return failed_tries_.load(std::memory_order_relaxed); }

  /// The writer: the save under way is on disk, or given up.
  void finished(bool written) {
    if (written) written_step_.store(saving_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    (written ? written_ : failed_).fetch_add(1, std::memory_order_relaxed);
    saving_.store(0, std::memory_order_release);
  }
  /// Saves that were written, and that were given up.
  uint64_t written() const { return written_.load(std::memory_order_relaxed); }
  int64_t written_step() const { return step_of(written_step_.load(std::memory_order_relaxed)); }  ///< -1: none
  uint64_t failed() const { return failed_.load(std::memory_order_relaxed); }

  /// The writer shows here that it still makes progress.
  std::atomic<uint64_t> written_bytes{0};
  /// Rank 0: nanoseconds that training lost by the last save.
  std::atomic<uint64_t> cost_ns{0};

  static constexpr size_t kAhead = 256;

 private:
  template <class Due>
  bool answer_for(int64_t step, const Due& due) {
    constexpr std::chrono::microseconds kLook{200};
    std::atomic<uint64_t>& slot = decisions_[static_cast<size_t>(step) % kAhead];
    const auto answered = [&] { return slot.load(std::memory_order_acquire) >> 1 == word(step); };
    if (!answered() && !due(last_step())) return false;
    for (uint64_t seen = wanted_.load(); seen < word(step) && !wanted_.compare_exchange_weak(seen, word(step));) {
    }
    while (!answered()) std::this_thread::sleep_for(kLook);  // without a launcher the agent ends the ranks
    return (slot.load(std::memory_order_relaxed) & 1) != 0;
  }

  static constexpr uint64_t word(int64_t step) { return static_cast<uint64_t>(step) + 1; }
  static constexpr int64_t step_of(uint64_t word) { return static_cast<int64_t>(word) - 1; }

  std::array<std::atomic<uint64_t>, kAhead> decisions_{};  ///< word of the step << 1 | whether it is saved
  std::atomic<uint64_t> asked_{0}, taken_{0};
  std::atomic<uint64_t> saving_{0}, last_{0};  ///< words of steps; 0: none
  std::atomic<uint64_t> reported_{0};
  std::atomic<uint64_t> written_{0}, failed_{0}, written_step_{0};
  std::atomic<uint64_t> awaits_room_{0}, failed_tries_{0};  ///< the word of a step
  std::atomic<uint64_t> elsewhere_{0},
      wanted_{0};                     ///< a host's board: 0: it is none, 2: steps await saves; the word of a step
  std::atomic<uint64_t> offered_{0};  ///< word of the step << 2 | set; 0: nothing
  std::atomic<uint64_t> set_{0};      ///< set of the last offer that was taken, plus 1
  /// A save begins when the one before it is finished, so the writer lags by two validations at most.
  static constexpr size_t kValidations = 4;
  struct Validated {
    std::atomic<uint64_t> step{0};  ///< its word
    Position position;
  };
  std::array<Validated, kValidations> validated_{};
  std::atomic<uint64_t> validations_{0};
  Position position_;
  std::array<Position, kSets> positions_{};  ///< position of each offered set
};

}  // namespace trainctl
