// A rank's side of saves: agrees with the other ranks on steps, and copies its state into memory that outlives the
// rank.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <thread>

#include "engine/planning/planned_job.h"
#include "engine/runtime/comm/rank_board.h"
#include "engine/train/checkpoint/state_image.h"
#include "engine/train/servers/server_observer.h"
#include "engine/train/trainer/train_observer.h"

namespace trainctl {

/// Shared memory for one rank's image: a memfd that the launcher, the rank and the writer have open.
class ImageMemory {
 public:
  /// Sizes and maps it. Takes ownership of `fd`. `is_populated`: allocates its pages in advance. Throws EnvError.
  ImageMemory(int fd, int64_t bytes, bool is_populated);
  ~ImageMemory();
  ImageMemory(const ImageMemory&) = delete;
  ImageMemory& operator=(const ImageMemory&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  int fd_;
  std::span<std::byte> bytes_;
  std::thread populate_;  ///< allocates the pages before the first save needs them
};

/// Returns what a checkpoint records of the steps before `position`, which may have been validated.
SaveBoard::Position board_position(const TrainPosition& position, const ValidationReport& validation);

class Saver : public StateObserver, public ServerSaves {
 public:
  /// All arguments must outlive it. `from`: start of the run; `failures`: how often it has failed and was restarted. A
  /// job that saves only its final weights allocates their memory when it ends.
  Saver(const PlannedJob& job, const Program& program, RankBoard& memory, int image_fd, const TrainPosition& from,
        int failures = 0);

  // Add it to the observers before those that report a step: with several hosts, a step may wait for its save.
  void before_step(int64_t step, Executor& executor) override;
  void before_validation(int64_t step, bool is_end, Executor& executor) override;
  void before_synchronization(Executor& executor) override { look(executor, true); }
  void at_end(int64_t step, Executor& executor) override;
  void on_step(const StepReport& report) override;
  void on_validation(const ValidationReport& report) override;
  void on_position(const TrainPosition& position) override;

  // The following functions are for an asynchronous server.
  /// `copy` is called in each save, before the state counts as copied, to copy state outside of the program.
  /// `follows_save`: this process's last save is on disk.
  void copies_too(std::function<void(bool follows_save)> copy) { copy_too_ = std::move(copy); }
  /// Call it before the first step, or before the final weights are saved.
  void prepare(Executor& executor);
  bool saves_before(int64_t step) override;
  void save(const TrainPosition& position, Executor& executor) override;
  void save_last(const TrainPosition& position, Executor& executor) override;

 private:
  using Clock = std::chrono::steady_clock;

  void take_memory();
  bool make_room_for(int64_t last_step);
  bool is_due(int64_t step, int64_t last);
  void begin(int64_t step, Executor& executor);
  void look(Executor& executor, bool wait);
  void report_position();
  void await_previous(int64_t step, Executor& executor);
  void await_begun();
  bool await_writer(const std::function<bool(int64_t step)>& is_awaited, bool ends_with_a_failed_try = false);

  const PlannedJob& job_;
  const Program& program_;
  RankBoard& shared_;
  RankStatus& status_;
  const bool reports_;  ///< whether this is the first of the ranks that save
  SaveBoard& board_;
  const CheckpointSpec spec_;
  const bool saves_state_;
  const StateImage image_;
  const int image_fd_;
  std::optional<ImageMemory> memory_;  ///< set by prepare()
  const int64_t first_step_, steps_per_epoch_;
  const int failures_;
  TrainPosition position_;
  ValidationReport validation_;  ///< the last validation
  int64_t best_step_ = -1;       ///< step of the best value of keep_best, if this attempt had it
  std::function<void(bool follows_save)> copy_too_;
  int64_t begun_ = -1;    ///< step of the last save; -1: none
  int64_t refused_ = -1;  ///< step of a save that did not finish in time; -1: none
  bool is_prepared_ = false;
  bool waited_in_vain_ = false;  ///< waiting for the save before the last one failed
  bool asks_ = false;            ///< it has requested a save from the launcher, which has not begun
  int64_t copying_ = -1;         ///< step whose state is being copied; -1: none
  const Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;  ///< when the last save began
  double usual_seconds_ = 0;         ///< seconds per step without a copy; moving average
  double lost_seconds_ = 0;          ///< seconds lost because of the copy in progress
};

}  // namespace trainctl
