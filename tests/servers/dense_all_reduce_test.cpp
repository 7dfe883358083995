// Tests of workers in lockstep whose tables are on servers, and which all_reduce all other gradients (parallel.sync:
// true, tables).
#include <doctest/doctest.h>

#include <chrono>
#include <random>
#include <thread>

#include "engine/compile/verify/verify_programs.h"
#include "engine/planning/compile_job.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/equivalence/harness.h"
#include "tests/jobs/jobs.h"
#include "tests/servers/async_run.h"

using namespace trainctl;

namespace {

Overrides in_step(int workers, int servers, int staleness) {
  return {"launch.ranks=" + std::to_string(workers),
          "parallel.mode=parameter_server",
          "parallel.sync=true",
          "parallel.servers=" + std::to_string(servers),
          "parallel.staleness=" + std::to_string(staleness),
          "parallel.tables=[table.*]"};
}

PlannedJob planned(const Overrides& overrides) { return plan_job(job_spec("wide_deep", overrides)); }

}  // namespace

TEST_CASE("synchronous workers have verified programs of data_parallel without messages, and servers have none") {
  for (const char* clip : {"0", "0.2"}) {
    const PlannedJob job = planned(in_step(4, 2, 4) + Overrides{std::string("optimizer.clip_norm=") + clip});
    const std::vector<Program> programs = compile_all(job);
    REQUIRE(programs.size() == 6);
    CHECK(verify_programs(programs).empty());
    CHECK_NOTHROW(compile_classes(job));
    int64_t reduced = 0, dense = 0;
    for (const Program& program : programs) {
      for (const Instruction& i : program.instructions) {
        CHECK(i.opcode != Opcode::send);
        CHECK(i.opcode != Opcode::recv);
        if (program.rank == 0 && i.opcode == Opcode::collective && i.purpose == Purpose::gradient)
          reduced += num_elements(i.inputs[0].shape);
      }
      if (program.server >= 0) CHECK(program.instructions.empty());
      for (const Bucket& b : program.buckets)
        if (program.rank == 0 && !b.table) dense += b.elements;
    }
    CHECK(reduced == dense);  // everything but tables and their rows
    CHECK(dense > 0);
  }
}

TEST_CASE("a worker in step has a window for its share of the batch") {
  const PlannedJob one = planned(in_step(1, 2, 4)), four = planned(in_step(4, 2, 4));
  CHECK(one.tables[0].window == 160);  // 32 samples of 5 ids
  CHECK(four.tables[0].window == 40);
}

TEST_CASE("with a staleness of 0 and plain SGD workers in step have the losses of a dense embedding under one rank") {
  for (const char* optimizer : {"{type: sgd, learning_rate: 0.1}", "{type: sgd, learning_rate: 0.05, momentum: 0}"}) {
    const Overrides same = {std::string("optimizer=") + optimizer};
    const RunResult dense = run_job("wide_deep", same);
    for (int workers : {1, 2, 4})
      for (int servers : {1, 3})
        for (const char* micro_batches : {"1", "2"}) {
          CAPTURE(workers);
          CAPTURE(servers);
          CAPTURE(micro_batches);
          const AsyncRun run = run_async(planned(same + in_step(workers, servers, 0) +
                                                 Overrides{std::string("parallel.micro_batches=") + micro_batches}));
          REQUIRE(run.losses.size() == dense.losses.size());
          for (const auto& [step, loss] : run.losses)
            CHECK(loss == doctest::Approx(dense.losses[static_cast<size_t>(step)]).epsilon(1e-5));
          for (const std::vector<int64_t>& of_server : run.staleness)
            CHECK(of_server == std::vector<int64_t>(dense.losses.size() * static_cast<size_t>(workers), 0));
        }
  }
}

TEST_CASE("one worker in step that clips has the losses of a dense embedding under one rank") {
  const Overrides same = {"optimizer={type: sgd, learning_rate: 0.1, clip_norm: 0.2}"};
  const RunResult dense = run_job("wide_deep", same);
  const AsyncRun run = run_async(planned(same + in_step(1, 2, 0)));
  REQUIRE(run.losses.size() == dense.losses.size());
  for (const auto& [step, loss] : run.losses)
    CHECK(loss == doctest::Approx(dense.losses[static_cast<size_t>(step)]).epsilon(1e-5));
}

TEST_CASE(
    "the dense part has the same bits on all workers, whatever their speeds, and rows are as old as staleness allows") {
  for (const int staleness : {1, 4}) {
    CAPTURE(staleness);
    std::vector<std::mt19937> random{std::mt19937(1), std::mt19937(2), std::mt19937(3)};
    AsyncOptions options;
    options.on_step = [&](int worker, const StepReport&, Executor&) {
      std::this_thread::sleep_for(std::chrono::microseconds(random[static_cast<size_t>(worker)]() % 2000));
    };
    options.on_update = [](int server) {
      if (server == 0) std::this_thread::sleep_for(std::chrono::microseconds(500));  // a slow server
    };
    const Overrides job = {"dataset.batch=48", "dataset.samples=480", "train={epochs: 4}"};
    const AsyncRun run = run_async(planned(job + in_step(3, 2, staleness)), options);
    CHECK(run.losses.size() == 40);
    CHECK(run.weights.contains("fc1.weight"));  // gather_weights has compared the workers'
    CHECK_FALSE(run.weights.contains("table.deep.weight"));
    for (const std::vector<int64_t>& of_server : run.staleness) {
      CHECK(of_server.size() == 120);
      for (const int64_t lacks : of_server) CHECK(lacks <= 3 * staleness);
    }
  }
}

TEST_CASE("workers in step learn made-up clicks as well as one rank does, and validate after all pushes") {
  const Overrides longer = {"dataset.samples=2048", "train={epochs: 6}", "validation={dataset: {samples: 512}}",
                            "optimizer={type: adam, learning_rate: 0.01}", "metrics=[accuracy]"};
  const AsyncRun run = run_async(planned(longer + in_step(4, 2, 4)));
  REQUIRE(run.validations.size() == 6);
  CHECK(run.validations.back().value("accuracy").value() > 0.7);  // always one class: about 0.5
  CHECK(run.losses.rbegin()->second < run.losses.begin()->second);
}
