// parallel.local_steps: the numbers do not depend on the plan inside a replica, and replicas exchange few bytes.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/planning/compile_job.h"
#include "engine/train/data/read_and_plan.h"
#include "engine/train/trainer/trainer.h"
#include "tests/equivalence/harness.h"
#include "tests/jobs/jobs.h"
#include "tests/train/function_observer.h"

using namespace trainctl;

namespace {

struct LocalRun {
  std::vector<std::vector<float>> losses;  ///< by rank and step
  std::map<std::string, std::vector<float>> weights;
  std::vector<std::vector<ValidationReport>> validations;  ///< by rank
  std::vector<int64_t> sent;  ///< by rank: bytes of collectives with ranks of other replicas
};

/// Returns whether ranks of several groups of `ranks` consecutive ranks belong to it.
bool is_between(const std::vector<int>& group, int ranks) {
  return std::any_of(group.begin(), group.end(), [&](int rank) { return rank / ranks != group.front() / ranks; });
}

/// A job of tests/jobs. `replica_ranks`: ranks of a replica, also for a job without local steps.
LocalRun run_local(const std::string& name, const Overrides& overrides, int replica_ranks) {
  const PlannedJob job = plan_job(job_spec(name, overrides));
  const bool has_replicas = job.plan.has_replicas();
  const std::vector<Program> programs = compile_all(job);
  std::vector<Program> synchronization, validation, exchange;
  for (int rank = 0; rank < job.spec.processes(); ++rank) {
    if (has_replicas) synchronization.push_back(compile_synchronization(job, rank));
    if (job.validation) validation.push_back(compile_validation(job, rank));
    if (validates_averages(job)) exchange.push_back(compile_exchange(job, rank));
  }
  const size_t n = programs.size();
  LocalRun run{
      std::vector<std::vector<float>>(n), {}, std::vector<std::vector<ValidationReport>>(n), std::vector<int64_t>(n)};
  std::vector<std::unique_ptr<Communicator>> comms(n);
  std::vector<std::unique_ptr<Trainer>> trainers(n);
  const auto body = [&](int rank, std::unique_ptr<Communicator> comm, std::span<std::byte> arena) {
    const auto r = static_cast<size_t>(rank);
    comms[r] = std::move(comm);
    FunctionObserver seen;
    seen.validation = [&](const ValidationReport& report) { run.validations[r].push_back(report); };
    TrainOptions options{.arena = arena};
    if (has_replicas) options.synchronization = &synchronization[r];
    if (job.validation) options.validation = &validation[r];
    if (!exchange.empty()) options.averages = &exchange[r];
    options.executor.on_communication = [&](const Instruction& i) {
      if (i.opcode != Opcode::collective) return;
      const Program& program = i.purpose == Purpose::outer ? synchronization[r] : programs[r];
      if (is_between(program.groups[static_cast<size_t>(i.group)], replica_ranks)) run.sent[r] += i.bytes();
    };
    trainers[r] = std::make_unique<Trainer>(job, programs[r], *comms[r], seen.alone(), options);
    while (const std::optional<StepReport> report = trainers[r]->run_step()) run.losses[r].push_back(report->loss);
  };
  std::vector<Program> beside = validation.empty() ? synchronization : validation;
  for (size_t r = 0; r < synchronization.size(); ++r)
    beside[r].arena_bytes = std::max(beside[r].arena_bytes, synchronization[r].arena_bytes);
  run_ranks(
      programs, body,
      [&] {
        std::vector<Executor*> executors;
        for (const auto& trainer : trainers) executors.push_back(&trainer->executor());
        run.weights = gather_weights(programs, executors);
      },
      beside);
  return run;
}

double difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - b[i]) / std::max(1.0, std::abs(double{b[i]})));
  return worst;
}

/// Synchronizes after steps 3, 6 and 8.
const Overrides kLocal = {
    "parallel.local_steps=3", "parallel.replicas=2", "parallel.outer={round_growth: 0, precision: fp32}",
    "train.steps=8",          "train.epochs=8",      "dataset.batch=16",
    "dataset.samples=64"};

}  // namespace

TEST_CASE("replicas that train local steps have the numbers of one rank each, whatever their plan") {
  const LocalRun reference =
      run_local("transformer", kLocal + Overrides{"launch.ranks=2", "parallel.mode=data_parallel"}, 1);
  CHECK(reference.losses[0] != reference.losses[1]);  // of other samples
  struct Inside {
    int ranks;
    Overrides plan;
  };
  const std::vector<Inside> plans = {
      {2, {"parallel.mode=data_parallel"}},
      {2, {"parallel.mode=data_parallel", "parallel.micro_batches=2"}},
      {2, {"parallel.mode=data_parallel", "parallel.optimizer_shard={level: 1, min_kb: 0}"}},
      {2, {"parallel.mode=data_parallel", "parallel.optimizer_shard={level: 2, min_kb: 0}"}},
      {2, {"parallel.mode=data_parallel", "parallel.optimizer_shard={level: 3, min_kb: 0}"}},
      {2, {"parallel.mode=semi_auto_parallel", "parallel.stages=2", "parallel.micro_batches=2"}},
      {4, {"parallel.mode=semi_auto_parallel", "parallel.stages=2", "parallel.micro_batches=2"}},
      {2, {"parallel.mode=semi_auto_parallel", "parallel.tensor=2"}},
  };
  for (const Inside& inside : plans) {
    CAPTURE(inside.ranks);
    CAPTURE(inside.plan.back());
    const LocalRun run =
        run_local("transformer", kLocal + Overrides{fmt::format("launch.ranks={}", 2 * inside.ranks)} + inside.plan,
                  inside.ranks);
    for (size_t rank = 0; rank < run.losses.size(); ++rank)
      CHECK(difference(run.losses[rank], reference.losses[rank / static_cast<size_t>(inside.ranks)]) < 2e-5);
    for (const auto& [name, values] : reference.weights) {
      CAPTURE(name);
      CHECK(difference(run.weights.at(name), values) < 2e-5);
    }
  }
}

TEST_CASE("one outer step with rate 1 and no momentum leaves the mean of the weights of the replicas") {
  const Overrides plain = {"parallel.mode=data_parallel", "launch.ranks=2", "optimizer={type: sgd, learning_rate: 0.1}",
                           "train.steps=1", "train.epochs=1"};
  const LocalRun shared = run_local("mlp", plain, 1);
  const LocalRun local = run_local("mlp",
                                   plain + Overrides{"parallel.local_steps=1", "parallel.replicas=2",
                                                     "parallel.outer={learning_rate: 1, momentum: 0, precision: fp32}"},
                                   1);
  // The mean of the weights after one step of plain SGD on halves of a batch is one step on the batch.
  for (const auto& [name, values] : shared.weights) {
    CAPTURE(name);
    CHECK(difference(local.weights.at(name), values) < 1e-6);
  }
}

TEST_CASE("64 local steps send at least 50 times fewer bytes between replicas than steps that all ranks share") {
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const Overrides fields = {fmt::format("launch.ranks={}", 2 * ranks), "parallel.mode=data_parallel",
                              "train.steps=64", "train.epochs=64", "dataset.batch=16"};
    const LocalRun shared = run_local("transformer", fields, ranks);
    const LocalRun local = run_local("transformer",
                                     fields + Overrides{"parallel.local_steps=64", "parallel.replicas=2",
                                                        "parallel.outer={round_growth: 0, precision: fp32}"},
                                     ranks);
    int64_t of_shared = 0, of_local = 0;
    for (size_t rank = 0; rank < shared.sent.size(); ++rank) {
      of_shared += shared.sent[rank];
      of_local += local.sent[rank];
    }
    CHECK(of_local > 0);
    CHECK(of_shared >= 50 * of_local);
  }
}

TEST_CASE("replicas that exchange differences in bf16 send half the bytes and reach weights within its rounding") {
  const Overrides fields = {"launch.ranks=4",         "parallel.mode=data_parallel",
                            "parallel.local_steps=4", "parallel.replicas=2",
                            "train.steps=12",         "train.epochs=12",
                            "dataset.batch=16",       "dataset.samples=64"};
  const LocalRun exact = run_local("transformer", fields + Overrides{"parallel.outer.precision=fp32"}, 2);
  const LocalRun rounded = run_local("transformer", fields, 2);
  for (size_t rank = 0; rank < exact.sent.size(); ++rank)
    CHECK(static_cast<double>(exact.sent[rank]) > 1.98 * static_cast<double>(rounded.sent[rank]));  // but for padding
  CHECK(rounded.weights != exact.weights);
  for (const auto& [name, values] : exact.weights) {
    CAPTURE(name);
    CHECK(difference(rounded.weights.at(name), values) < 1e-3);
  }
}

TEST_CASE("a validation between two synchronizations evaluates the outer weights on every replica") {
  const Overrides fields = kLocal + Overrides{"launch.ranks=4", "parallel.mode=data_parallel",
                                              "validation={every_steps: 2, dataset: {samples: 16}}"};
  const LocalRun run = run_local("transformer", fields, 2);
  REQUIRE(run.validations[0].size() == 4);
  for (const auto& of_rank : run.validations) {
    REQUIRE(of_rank.size() == 4);
    for (size_t v = 0; v < of_rank.size(); ++v) CHECK(of_rank[v].values == run.validations[0][v].values);
  }
  // After steps 4 and 5 the outer weights are those of step 3, so steps 4 and 2 differ, and no step in between counts.
  CHECK(run.validations[0][0].values != run.validations[0][1].values);
}

TEST_CASE(
    "running statistics keep replicas from validating between two synchronizations, the load of experts does not") {
  const Overrides fields = kLocal + Overrides{"launch.ranks=4", "parallel.mode=data_parallel",
                                              "validation={every_steps: 2, dataset: {samples: 16}}"};
  CHECK_NOTHROW(plan_job(job_spec("moe", fields)));
  CHECK_THROWS_WITH_AS(plan_job(job_spec("batch_norm", fields)), doctest::Contains("until they synchronize"),
                       SpecError);
}
