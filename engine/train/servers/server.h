// A parameter server of asynchronous workers, or of only tables: an event loop around the executor. It answers pulls
// with copies of its parameters, receives pushes, and runs its program (engine/compile/lower/serve.cpp) once for each
// whole push.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/start_up.h"
#include "engine/ops/optimizer_def.h"
#include "engine/planning/planned_job.h"
#include "engine/runtime/comm/shared_memory.h"
#include "engine/runtime/executor.h"
#include "engine/train/servers/push_inbox.h"
#include "engine/train/servers/request.h"
#include "engine/train/servers/server_observer.h"
#include "engine/train/servers/staleness.h"
#include "engine/train/servers/table_rows.h"
#include "engine/train/trainer/trainer.h"

namespace trainctl {

struct ServerOptions {
  int threads = 1;
  std::span<std::byte> arena{};  ///< memory of server_arena_bytes
  StartUpClock start_up{};
  TrainPosition from{};  ///< where the run resumes
  std::function<void(Executor&)> restore{};
  std::function<void(servers::TableRows&)> restore_table{};  ///< called for each table
};

/// Bytes of the arena of a server's rank: the arena of its program, and message buffers for each worker.
int64_t server_arena_bytes(const PlannedJob& job, const Program& program);

/// Call before any process starts. Sets up the batches of the run from step `first` on; does nothing in a job without
/// such servers.
void prepare_batches(const PlannedJob& job, int64_t first, SharedMemory& memory);

class AsyncServer {
 public:
  /// The arguments must outlive the server. `memory`'s BatchBoard is prepared. `saves`: null if nothing is saved.
  AsyncServer(const PlannedJob& job, const Program& program, const SharedMemory& memory, Communicator& comm,
              ServerObserver& observer, ServerSaves* saves = nullptr, const ServerOptions& options = {});
  ~AsyncServer();

  /// Serves until each worker has closed its exchange or ended. Throws CommError if the host has lost a worker's
  /// memory.
  void run();

  int64_t updates() const { return updates_; }
  Executor& executor() { return *executor_; }
  /// The tables in the order of PlannedJob::tables.
  const std::vector<std::unique_ptr<servers::TableRows>>& tables() const { return tables_; }

 private:
  /// A message of a pull or a push.
  struct Part {
    int64_t offset = 0;  ///< in the arena; -1 in a push
    int64_t at = 0;      ///< in the worker's buffers
    int64_t bytes = 0;
  };
  struct Worker;

  bool serve(Worker& worker);
  bool free_one();
  bool may_start(const servers::Request& request);
  bool has_ids(Worker& worker);
  void answer(Worker& worker);
  void answer_rows(Worker& worker);
  void answer_ahead(Worker& worker);
  template <class F>
  void for_each_table(const Worker& worker, const int32_t* counts, const F& f) const;
  size_t messages_of(const Worker& worker) const;
  void take_message(Worker& worker);
  void take_push(Worker& worker);
  void apply(Worker& worker);
  bool has_ended(const Worker& worker) const;
  void let_go(Worker& worker);
  bool is_near(int64_t batch) const;
  bool is_held(int64_t step);
  void save_before_validation();
  void save_last();
  void join_save();
  int64_t step_of(int64_t batch) const { return batch / pushes_per_step_; }
  int64_t staleness_of(const Worker& worker) const;
  void count(const servers::Report& report, int64_t batch);
  TrainPosition position() const;
  void update_tables(const Worker& worker, const StepScalars& scalars);
  void lay_out(const Program& program);

  const PlannedJob& job_;
  const Program& program_;
  const Optimizer optimizer_;
  const SharedMemory& memory_;
  Communicator& comm_;
  ServerObserver& observer_;
  ServerSaves* const saves_;
  StartUpClock start_up_;
  servers::PushInbox inbox_;
  std::unique_ptr<Executor> executor_;
  std::span<std::byte> arena_;
  std::vector<Part> pulled_, pushed_;
  std::vector<std::unique_ptr<servers::TableRows>> tables_;
  std::vector<std::vector<size_t>> of_fields_;  ///< indices into tables_, by field
  std::vector<Worker> workers_;
  servers::Applied applied_;
  const int64_t pushes_per_step_;
  int64_t updates_;
  int64_t decided_;          ///< saves_before was asked for the steps up to this
  int64_t saved_at_ = -1;    ///< steps from here on wait for a save; -1: none
  int64_t saved_step_ = -1;  ///< step of the last save; -1: none
  bool has_saved_last_ = false;
  /// Means of applied batches, from the first epoch whose batches are not all applied.
  std::map<int64_t, EpochMeans> epochs_;
  std::vector<ReportedMetric> metrics_;  ///< metrics of a worker's program
  bool is_finite_;
  ValidationReport validation_;
  const int64_t first_update_, run_steps_, steps_per_epoch_;
};

}  // namespace trainctl
