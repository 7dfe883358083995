// train.audit_every on emulated GPUs: each rank records steps on a tape and replays them on a second executor.
#include <doctest/doctest.h>

#include "engine/planning/compile_job.h"
#include "engine/runtime/comm/shared_memory.h"
#include "engine/runtime/comm/shared_memory_communicator.h"
#include "engine/runtime/cuda/cuda_executor.h"
#include "engine/runtime/stored_ranges.h"
#include "engine/train/data/read_and_plan.h"
#include "engine/train/trainer/step_audit.h"
#include "engine/train/trainer/trainer.h"
#include "tests/cuda_emulator/forked_ranks.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;

namespace {

constexpr double kAuditTimeout = 60;
constexpr int kNamed = 42;  ///< exit code of a rank whose fault was named

/// Changes a bit of the first weight.
void flip_first_weight(const Program& program, Executor& executor) {
  for (const StoredRange& range : stored_ranges(program)) {
    if (range.slot != kWeightSlot || range.count == 0 || range.is_copy) continue;
    uint32_t bits = 0;
    executor.read(range.offset, &bits, sizeof bits);
    bits ^= 1U << 12;
    return executor.write(range.offset, &bits, sizeof bits);
  }
}

/// Trains 8 steps and audits the 4th and the last. `faulty`: whether the rank's weights get a wrong bit after each step
/// from the fifth on.
int train_audited(const PlannedJob& job, const Program& program, const std::shared_ptr<SharedMemory>& memory, int rank,
                  bool faulty) {
  const auto comm = make_shared_memory_communicator(memory, rank, kAuditTimeout);
  AuditOptions audits{.every = 4};
  for (const int card : {0, 1})
    audits.cards.push_back({card, [](const Program& p, Communicator& ranks, const ExecutorOptions& of) {
                              return make_cuda_executor(p, ranks, of, {});
                            }});
  if (faulty)
    audits.corrupt = [&](int64_t step, Executor& executor) {
      if (step >= 5) flip_first_weight(program, executor);
    };
  StepAudit audit(program, *comm, std::move(audits));
  TrainOptions options;
  options.cuda.emplace();
  options.cuda->timeout_seconds = kAuditTimeout;
  options.audit = &audit;
  TrainObservers observers;
  observers.add(audit);
  try {
    const TrainResult result = train(job, program, audit.communicator(), std::move(observers), options);
    return result.steps == 8 && audit.audited_steps() == 2 ? 0 : 2;
  } catch (const AuditFailed& error) {
    const AuditMismatch& found = error.mismatch();
    std::printf("rank %d: %s\n", rank, error.what());
    return faulty && found.step == 8 && found.tensor.starts_with("weight/") && found.first_is_wrong == true ? kNamed
                                                                                                            : 3;
  }
}

std::vector<int> exit_codes(const std::vector<std::string>& plan, int faulty_rank) {
  std::vector<std::string> fields = {"launch.device=cuda", "train={steps: 8}", "loss=mse"};
  fields.insert(fields.end(), plan.begin(), plan.end());
  const PlannedJob job = plan_job(job_spec("mlp", fields));
  const std::vector<Program> programs = compile_all(job);
  std::vector<int64_t> arena_bytes;
  for (const Program& program : programs) arena_bytes.push_back(program.arena_bytes);
  const std::shared_ptr<SharedMemory> memory = SharedMemory::create(arena_bytes);
  return run_forked(static_cast<int>(programs.size()), [&](int rank) {
    return train_audited(job, programs[static_cast<size_t>(rank)], memory, rank, rank == faulty_rank);
  });
}

const std::vector<std::vector<std::string>> kAuditedPlans = {
    {"launch.ranks=1"},
    {"launch.ranks=2", "parallel.mode=data_parallel", "parallel.micro_batches=2"},
    {"launch.ranks=2", "parallel.mode=data_parallel", "parallel.optimizer_shard={level: 1, min_kb: 0}"},
    {"launch.ranks=2", "parallel.mode=data_parallel", "parallel.optimizer_shard={level: 3, min_kb: 0}"},
    {"launch.ranks=2", "parallel.mode=semi_auto_parallel", "parallel.stages=2", "parallel.micro_batches=4"},
};

}  // namespace

TEST_CASE("audits on GPUs raise no alarm under any plan") {
  for (const std::vector<std::string>& plan : kAuditedPlans) {
    CAPTURE(plan.back());
    for (const int code : exit_codes(plan, -1)) CHECK(code == 0);
  }
}

TEST_CASE("an audit on GPUs names a wrong bit in one tensor of a rank under every plan") {
  for (const std::vector<std::string>& plan : kAuditedPlans) {
    CAPTURE(plan.back());
    const std::vector<int> codes = exit_codes(plan, static_cast<int>(plan.size() > 1));
    CHECK(codes.back() == kNamed);
  }
}
