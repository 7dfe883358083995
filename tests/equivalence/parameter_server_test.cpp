// Parameter servers, synchronous: the numbers of one rank, whatever the counts of workers and servers.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "engine/base/text.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/equivalence/compare.h"
#include "tests/equivalence/harness.h"
#include "tests/equivalence/plan_cases.h"
#include "tests/equivalence/saved_run.h"
#include "tests/jobs/jobs.h"
#include "tests/train/scratch_folder.h"

using namespace trainctl;

namespace {

Overrides served(int workers, int servers) {
  return {"launch.ranks=" + std::to_string(workers), "parallel.mode=parameter_server",
          "parallel.servers=" + std::to_string(servers)};
}

constexpr size_t kParameterServerSteps = 12;
const Overrides kShort = {"train={steps: 12}"};

const char* const kMomentum = "optimizer={type: sgd, learning_rate: 0.02, momentum: 0.9, weight_decay: 0.01}";
const char* const kClipped =
    "optimizer={type: sgd, learning_rate: 0.02, momentum: 0.9, clip_norm: 0.3, groups: [{parameters: ['*.bias'], "
    "momentum: 0}, {parameters: [layer2.*], learning_rate_scale: 0.1}]}";
const char* const kAdamw = "optimizer={type: adamw, learning_rate: 0.001, weight_decay: 0.1}";

struct Job {
  const char* name;
  Overrides same;
  double tolerance = kSgdTolerance;
};

/// Jobs with a batch that 1 to 6 workers divide.
const std::vector<Job> kJobs = {
    {"mlp", {"dataset.batch=120", "dataset.samples=240", kMomentum}},
    {"mlp", {"dataset.batch=120", "dataset.samples=240", kClipped, "parallel.micro_batches=2"}},
    {"classifier", {"dataset.batch=60", "dataset.samples=240", kAdamw}, kAdamTolerance},
    {"batch_norm", {"dataset.batch=60", "dataset.samples=240"}},
};

/// A row that the table runs under data_parallel in one stage, with the same workers and servers, without sharding.
struct Row {
  const PlanCase* plan = nullptr;
  Overrides overrides;
};

std::vector<Row> data_parallel_rows() {
  std::vector<Row> rows;
  for (const PlanCase& plan : plan_cases()) {
    const auto has = [&](const std::string& text) {
      return std::any_of(plan.plan.begin(), plan.plan.end(),
                         [&](const std::string& item) { return item.starts_with(text); });
    };
    const bool is_even = !has("parallel.stages") && !has("parallel.rank_micro_batches");
    if (!has("parallel.mode=data_parallel") || !is_even || plan.reference) continue;
    Row row{&plan, plan.same};
    for (const std::string& item : plan.plan)
      if (!item.starts_with("parallel.optimizer_shard") && !item.starts_with("parallel.mode"))
        row.overrides.push_back(item);
    row.overrides.push_back("parallel.mode=parameter_server");
    row.overrides.push_back("parallel.servers=" + std::to_string(1 + rows.size() % 4));
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

TEST_CASE("1 to 6 workers with 1 to 4 servers follow the one-rank loss and run the messages of the report") {
  for (const Job& job : kJobs) {
    CAPTURE(job.name);
    CAPTURE(join(job.same));
    const RunResult reference = run_job(job.name, job.same + kShort);
    for (int workers = 1; workers <= 6; ++workers) {
      for (int servers = 1; servers <= 4; ++servers) {
        CAPTURE(workers);
        CAPTURE(servers);
        const RunResult run = run_job(job.name, job.same + kShort + served(workers, servers));
        CHECK(run.programs.size() == static_cast<size_t>(workers + servers));
        check_losses(run, reference, job.tolerance, kParameterServerSteps);
        check_weights(run, reference, job.tolerance);
        check_communications(run);
      }
    }
  }
}

TEST_CASE("every data-parallel job of the table has the same losses with parameter servers") {
  const std::vector<Row> rows = data_parallel_rows();
  CHECK(rows.size() >= 30);
  for (const Row& row : rows) {
    SUBCASE(row.plan->name.c_str()) {
      CAPTURE(join(row.overrides));
      const RunResult reference = run_job(row.plan->job, row.plan->same + kShort);
      const RunResult run = run_job(row.plan->job, row.overrides + kShort);
      check_losses(run, reference, row.plan->tolerance, kParameterServerSteps);
      check_weights(run, reference, row.plan->tolerance);
      check_communications(run);
    }
  }
}

TEST_CASE("the number of servers changes no bit of a job without clipping") {
  for (const Job& job : {kJobs[0], kJobs[2]}) {
    CAPTURE(job.name);
    const RunResult one = run_job(job.name, job.same + kShort + served(3, 1));
    const RunResult data_parallel =
        run_job(job.name, job.same + kShort + Overrides{"launch.ranks=3", "parallel.mode=data_parallel"});
    CHECK(same_bits(one.losses, data_parallel.losses));
    for (int servers = 2; servers <= 4; ++servers) {
      CAPTURE(servers);
      const RunResult run = run_job(job.name, job.same + kShort + served(3, servers));
      CHECK(same_bits(run.losses, one.losses));
      CHECK(same_weights(run, one));
    }
  }
}

TEST_CASE("parameter servers give the same bits twice") {
  for (const Job& job : kJobs) {
    CAPTURE(job.name);
    const Overrides overrides = job.same + kShort + served(4, 3);
    const RunResult first = run_job(job.name, overrides), second = run_job(job.name, overrides);
    CHECK(same_bits(first.losses, second.losses));
    CHECK(same_weights(first, second));
  }
}

TEST_CASE("servers keep the f32 weights of a bf16 job and workers pull the copies that kernels read") {
  const Overrides bf16 = {"precision=bf16", "loss=mse", kMomentum};
  const RunResult reference = run_job("mlp", bf16 + kShort);
  for (const char* gradients : {"fp32", "bf16"}) {
    for (const char* micro_batches : {"1", "2"}) {
      const Overrides more = {std::string("gradient_precision=") + gradients,
                              std::string("parallel.micro_batches=") + micro_batches};
      CAPTURE(join(more));
      const RunResult run = run_job("mlp", bf16 + kShort + more + served(4, 2));
      check_losses(run, reference, 2e-2, kParameterServerSteps);
      check_communications(run);
      for (const Program& program : run.programs) CHECK((program.memory.master > 0) == (program.server >= 0));
    }
  }
}

TEST_CASE("a run saved under parameter servers continues under data_parallel, and vice versa") {
  for (const Job& job : kJobs) {
    CAPTURE(job.name);
    const auto planned = [&](const Overrides& plan) { return plan_job(job_spec(job.name, job.same + kShort + plan)); };
    const Overrides servers = served(4, 3), others = served(2, 1),
                    data_parallel = {"launch.ranks=3", "parallel.mode=data_parallel"};
    for (const auto& [first, second] :
         {std::pair(servers, servers), {servers, others}, {servers, data_parallel}, {data_parallel, servers}}) {
      CAPTURE(join(first));
      CAPTURE(join(second));
      const ScratchFolder folder;
      constexpr int64_t kAt = 5;
      const SavedRun saved = run_and_save(planned(first), kAt, folder.path());
      const RunResult resumed = resume(planned(second), saved.path);
      REQUIRE(resumed.losses.size() == kParameterServerSteps - kAt);
      for (size_t i = 0; i < resumed.losses.size(); ++i) {
        const auto expected = static_cast<double>(saved.result.losses[kAt + i]);
        CHECK(std::abs(static_cast<double>(resumed.losses[i]) - expected) <= job.tolerance * std::abs(expected));
      }
      if (first == second) CHECK(same_weights(resumed, saved.result));
    }
  }
}

TEST_CASE("a validation with parameter servers has the numbers of one rank and changes no bit of the training") {
  const Overrides validated = {"validation={dataset: {samples: 103}, every_steps: 5}"};
  for (const Job& job : {kJobs[1], kJobs[2]}) {
    CAPTURE(job.name);
    const RunResult reference = run_job(job.name, job.same + kShort + validated);
    const RunResult plain = run_job(job.name, job.same + kShort + served(3, 2));
    const RunResult run = run_job(job.name, job.same + kShort + served(3, 2) + validated);
    CHECK(same_bits(run.losses, plain.losses));
    CHECK(same_weights(run, plain));
    REQUIRE(run.validations.size() == 3);  // after 5, 10 and 12 steps
    for (size_t v = 0; v < run.validations.size(); ++v) {
      CHECK(run.validations[v].samples == reference.validations[v].samples);
      for (size_t i = 0; i < run.validations[v].values.size(); ++i)
        CHECK(run.validations[v].values[i].second ==
              doctest::Approx(reference.validations[v].values[i].second).epsilon(20 * job.tolerance));
    }
  }
}

TEST_CASE("workers keep no optimizer state and servers hold every parameter once") {
  const RunResult run = run_job("lenet", kShort + served(4, 2));
  int64_t stored = 0, all = 0;
  for (const Program& program : run.programs) {
    CHECK((program.memory.optimizer > 0) == (program.server >= 0));
    for (const Bucket& b : program.buckets)
      if (program.server >= 0) stored += b.shard_elements();
    if (program.rank == 0)
      for (const Bucket& b : program.buckets) all += b.elements;
  }
  CHECK(stored == all);
}
