// The worker's side of the parameter-server protocol (request.h). Before the program runs on a batch, the client sends
// one request to each server and pulls the table rows that the batch reads into the arena (RowWindow). The program
// itself receives the weights and sends their gradients. After the program has run, the client pushes the gradients of
// the rows and a report. It also prefetches the rows of the next batch, which arrive while the program runs, except for
// rows that the current batch updates.
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
  /// The arguments must outlive the client. `program` is this worker's training program. `validation` is its validation
  /// program, which shares the arena; null if the job has no validation.
  Client(const PlannedJob& job, const Program& program, const Program* validation, std::span<std::byte> arena,
         Communicator& comm);

  /// Call before the program runs on `batch`. Replaces the ids in `inputs` by row positions in the window and fills the
  /// window with those rows. `next`: the batch that this worker will run afterwards, if known; its rows are prefetched.
  void start(int64_t batch, std::byte* inputs, const std::optional<Loader::Ahead>& next = {});
  /// Call after the program has run on that batch. Pushes the gradients of its rows and the report (loss, metrics, and
  /// the gradient norm if workers run in step).
  void finish(const StepReport& step);
  /// Call before a validation. Waits until the servers have applied the updates of all batches before `batch` and have
  /// copied any state that is due to be saved, so that a failing validation cannot lose that checkpoint.
  void wait_for_updates(int64_t batch);
  /// Call before the validation program runs. Pulls the rows that it reads. They, and the weights that the program then
  /// receives, include the updates of all batches before `batch`.
  void read(int64_t batch, std::byte* inputs);
  /// Ends the exchange: no more messages follow.
  void close();

  // Used by workers that run in step: start(), finish() and read().
  void before_batch(int64_t step, std::byte* inputs, const std::optional<Loader::Ahead>& next) override;
  void after_batch(const StepReport& report) override { finish(report); }
  void before_validation_batch(int64_t step, std::byte* inputs) override { read(step * pushes_per_step_, inputs); }

  /// Row counts since the start: pulled on demand, prefetched, and read from the cache, prefetched rows included.
  struct Counts {
    int64_t pulled = 0, ahead = 0, reused = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  int rank_of(int server) const { return first_server_ + server; }
  const float* find_cached(size_t field, int32_t id, int64_t batch) const { return row_caches_[field].find(id, batch); }
  void send_request(Ask what, int64_t batch, const RowWindow* window, int64_t next = -1);
  void pull_rows(const RowWindow& window);
  void cache_pulled();
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
  std::vector<std::vector<int64_t>> units_;  ///< embedding widths (floats per row) of the tables of each field
  std::vector<RowCache> row_caches_;         ///< one per field
  int64_t started_ = 0;                      ///< batches started so far
  std::vector<std::vector<int32_t>> ahead_;  ///< ids of prefetched rows, per field, in server order
  bool is_prefetching_ = false;
  std::vector<float> prefetched_;  ///< the prefetched rows of one server
  std::vector<float> converted_;   ///< rows or gradients that are bf16 in the arena; messages have f32
  Counts counts_;
};

}  // namespace trainctl::servers
