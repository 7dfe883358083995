// A worker's end of its conversations with the servers (request.h): one request to each of them before its program runs
// on a batch, rows of tables into its windows, and the end of a push after it. Rows of the next batch are asked for
// with a batch and travel while its program runs, but for those that the batch itself updates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/runtime/communicator.h"
#include "engine/train/data/loader.h"
#include "engine/train/servers/request.h"
#include "engine/train/servers/row_cache.h"
#include "engine/train/servers/row_window.h"
#include "engine/train/trainer/train_observer.h"

namespace trainctl::servers {

class Client : public BatchExchange {
 public:
  /// All must outlive it. `program` is this worker's, and `validation` evaluates in the same arena; null: nothing does.
  Client(const PlannedJob& job, const Program& program, const Program* validation, std::span<std::byte> arena,
         Communicator& comm);

  /// Before the program runs on `batch`: replaces ids by places in the windows, and fills those. `next`: the batch that
  /// this worker runs after it, if it is known.
  void start(int64_t batch, std::byte* inputs, const std::optional<Loader::Ahead>& next = {});
  /// The program has run on the batch that was started last: pushes the gradients of its rows, and the report.
  void finish(const StepReport& step);
  /// Before a validation, which may fail: waits for all updates of the batches before this one, and for the copy of a
  /// state that is to be saved after them.
  void settle(int64_t batch);
  /// Before the validation's program runs: with all updates of the batches before this one.
  void read(int64_t batch, std::byte* inputs);
  /// Ends the exchange: no more messages follow.
  void leave();

  // For workers in step: start(), finish() and read().
  void before_batch(int64_t step, std::byte* inputs, const std::optional<Loader::Ahead>& next) override;
  void after_batch(const StepReport& report) override { finish(report); }
  void before_validation_batch(int64_t step, std::byte* inputs) override { read(step * pushes_per_step_, inputs); }

  /// Rows so far: that were pulled before a batch, that were asked for ahead and came, and that a batch used again.
  struct Counts {
    int64_t pulled = 0, ahead = 0, reused = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  int rank_of(int server) const { return first_server_ + server; }
  const float* at_hand(size_t field, int32_t id, int64_t batch) const { return row_caches_[field].find(id, batch); }
  void ask(Ask what, int64_t batch, const RowWindow* window, int64_t next = -1);
  void pull_rows(const RowWindow& window);
  void hold_pulled();
  void fill_from_cache();
  std::span<const int32_t> ahead_ids(size_t field, int server) const;
  void receive_ahead();
  void push_rows();

  const int worker_, servers_, first_server_, pushes_per_step_;
  const std::span<std::byte> arena_;
  Communicator& comm_;
  int64_t norm_offset_ = -1;  ///< in the arena; -1: the servers compute the norm, or the job does not clip
  RowWindow window_;
  std::optional<RowWindow> validation_window_;
  std::vector<std::vector<int64_t>> units_;  ///< units of each table, by field
  std::vector<RowCache> row_caches_;         ///< by field
  int64_t started_ = 0;                      ///< batches started so far
  std::vector<std::vector<int32_t>> ahead_;  ///< ids that were asked for ahead, by field; those of server 0 first
  bool has_asked_ahead_ = false;
  std::vector<float> block_;  ///< rows that came ahead, from one server
  Counts counts_;
};

}  // namespace trainctl::servers
