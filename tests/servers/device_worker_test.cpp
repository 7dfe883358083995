// Tests of workers on devices with servers on the host's cores. A CPU executor with an arena of its own stands for a
// GPU's executor.
#include "engine/runtime/device_worker.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "engine/base/text.h"
#include "engine/planning/compile_job.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/equivalence/harness.h"
#include "tests/jobs/jobs.h"
#include "tests/servers/async_run.h"
#include "tests/train/function_observer.h"

using namespace trainctl;

namespace {

Overrides synchronous(int workers, int servers) {
  return {"launch.ranks=" + std::to_string(workers), "parallel.mode=parameter_server",
          "parallel.servers=" + std::to_string(servers)};
}

/// The losses of all processes, which are the same, and the validations of worker 0.
struct Run {
  std::vector<float> losses;
  std::vector<ValidationReport> validations;
};

Run run_on_devices(const PlannedJob& job) {
  const std::vector<Program> programs = compile_all(job);
  std::vector<Program> validation;
  if (job.validation)
    for (const Program& program : programs) validation.push_back(compile_validation(job, program.rank));
  std::vector<Run> runs(programs.size());
  run_ranks(
      programs,
      [&](int rank, std::unique_ptr<Communicator> comm, std::span<std::byte> arena) {
        const auto at = static_cast<size_t>(rank);
        FunctionObserver seen;
        seen.validation = [&](const ValidationReport& report) { runs[at].validations.push_back(report); };
        TrainOptions options;
        options.arena = arena;
        if (job.validation) options.validation = &validation[at];
        if (programs[at].server < 0) options.device = stand_in_for_device;
        Trainer trainer(job, programs[at], *comm, seen.alone(), options);
        while (const auto report = trainer.run_step()) runs[at].losses.push_back(report->loss);
      },
      {}, validation);
  for (const Run& run : runs) CHECK(run.losses == runs[0].losses);
  return runs[0];
}

const char* const kDeviceWorkerClipped = "optimizer={type: adam, learning_rate: 0.003, clip_norm: 0.3}";

}  // namespace

TEST_CASE("a worker's program without servers has no messages to them, and its waits refer to earlier instructions") {
  const PlannedJob job = plan_job(job_spec("batch_norm", synchronous(2, 2)));
  for (int rank = 0; rank < 2; ++rank) {
    const Program program = compile(job, rank), kept = servers::without_servers(program, 2);
    CHECK(kept.instructions.size() < program.instructions.size());
    bool sums_statistics = false;
    for (size_t i = 0; i < kept.instructions.size(); ++i) {
      const Instruction& code = kept.instructions[i];
      CHECK(code.opcode != Opcode::send);
      CHECK(code.opcode != Opcode::recv);
      for (const int wait : code.waits) {
        CHECK(wait >= 0);
        CHECK(wait < static_cast<int>(i));
      }
      if (code.opcode != Opcode::collective) continue;
      sums_statistics = true;
      CHECK(kept.groups.at(static_cast<size_t>(code.group)) == std::vector<int>{0, 1});
    }
    CHECK(sums_statistics);  // between workers: stays on the devices
  }
}

TEST_CASE("synchronous workers on devices have the losses of one rank, whatever their number and the servers'") {
  struct Case {
    const char* job;
    Overrides same;
  };
  for (const Case& c : {Case{"mlp", {kDeviceWorkerClipped}}, Case{"mlp", {"parallel.micro_batches=2"}},
                        Case{"batch_norm", {}}, Case{"classifier", {"metrics=[accuracy]"}}}) {
    CAPTURE(c.job);
    CAPTURE(join(c.same));
    const Overrides same = c.same + Overrides{"train={steps: 10}"};
    const RunResult expected = run_job(c.job, same);
    for (int workers : {1, 2})
      for (int servers : {1, 3}) {
        CAPTURE(workers);
        CAPTURE(servers);
        const Run found = run_on_devices(plan_job(job_spec(c.job, same + synchronous(workers, servers))));
        REQUIRE(found.losses.size() == expected.losses.size());
        for (size_t i = 0; i < found.losses.size(); ++i)
          CHECK(found.losses[i] == doctest::Approx(expected.losses[i]).epsilon(1e-5));
      }
  }
}

TEST_CASE("a validation on devices pulls the servers' weights and has the numbers of one rank") {
  const Overrides validated = {"validation={dataset: {samples: 103}}", "train={epochs: 2}"};
  const RunResult expected = run_job("classifier", validated);
  const Run found = run_on_devices(plan_job(job_spec("classifier", validated + synchronous(2, 2))));
  REQUIRE(found.validations.size() == expected.validations.size());
  for (size_t v = 0; v < found.validations.size(); ++v)
    for (size_t i = 0; i < found.validations[v].values.size(); ++i)
      CHECK(found.validations[v].values[i].second ==
            doctest::Approx(expected.validations[v].values[i].second).epsilon(1e-4));
}

TEST_CASE("asynchronous workers on devices, with tables or without, have one rank's losses where there is one worker") {
  AsyncOptions options;
  options.on_devices = true;
  struct Case {
    const char* job;
    Overrides same, served;
  };
  const Overrides async = {"launch.ranks=1", "parallel.mode=parameter_server", "parallel.servers=2"};
  for (const Case& c : {Case{"mlp", {kDeviceWorkerClipped, "train={steps: 10}"}, {"parallel.sync=false"}},
                        Case{"wide_deep", {}, {"parallel.sync=false", "parallel.tables=[table.*]"}},
                        Case{"wide_deep",
                             {"optimizer={type: sgd, learning_rate: 0.1, clip_norm: 0.2}"},
                             {"parallel.sync=true", "parallel.staleness=0", "parallel.tables=[table.*]"}}}) {
    CAPTURE(c.job);
    CAPTURE(join(c.served));
    const RunResult expected = run_job(c.job, c.same);
    const AsyncRun found = run_async(plan_job(job_spec(c.job, c.same + async + c.served)), options);
    REQUIRE(found.losses.size() == expected.losses.size());
    for (const auto& [batch, loss] : found.losses)
      CHECK(loss == doctest::Approx(expected.losses[static_cast<size_t>(batch)]).epsilon(1e-5));
  }
}
