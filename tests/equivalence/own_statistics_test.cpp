// Tests of batch_norm with sync: false, where each rank normalises over its own rows.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/equivalence/compare.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;

namespace {

constexpr size_t kOwnSteps = 12;

/// A job of tests/jobs whose batch_norm layers do not share statistics.
PlannedJob with_own_statistics(const std::string& name, Overrides plan) {
  std::string text = job_text(name);
  replace_all(text, "type: batch_norm", "type: batch_norm, sync: false");
  plan.push_back("train={steps: " + std::to_string(kOwnSteps) + "}");
  return plan_job(parse_job(text, job_file(name), plan));
}

/// Collectives of statistics in a step of rank 0, by whether a micro-batch or the end of the step calls them.
std::pair<int, int> statistics_of(const RunResult& run) {
  int in_layers = 0, after = 0;
  for (const Instruction& i : run.programs.front().instructions) {
    const bool is_counted = i.purpose == Purpose::statistics || i.purpose == Purpose::redistribute;
    if (i.opcode != Opcode::collective || !is_counted) continue;
    ++(i.micro_batch >= 0 ? in_layers : after);
  }
  return {in_layers, after};
}

}  // namespace

TEST_CASE("with sync: false ranks have the losses of one rank whose micro-batches are their rows") {
  const struct {
    const char* job;
    Overrides plan;
    int micro_batches;  ///< number of the reference, which is one rank
  } cases[] = {{"batch_norm", {"launch.ranks=2"}, 2},
               {"batch_norm", {"launch.ranks=4"}, 4},
               {"batch_norm", {"launch.ranks=2", "parallel.micro_batches=2"}, 4},
               {"batch_norm", {"launch.ranks=3", "parallel.optimizer_shard={level: 2, min_kb: 0}"}, 3},
               {"resnet", {"launch.ranks=2"}, 2}};
  for (const auto& one : cases) {
    CAPTURE(one.job);
    CAPTURE(join(one.plan));
    const RunResult run = run_job(with_own_statistics(one.job, one.plan + Overrides{"parallel.mode=data_parallel"}));
    const RunResult reference = run_job(with_own_statistics(
        one.job, {"launch.ranks=1", "parallel.micro_batches=" + std::to_string(one.micro_batches)}));
    check_losses(run, reference, 2e-4, kOwnSteps);
    check_communications(run);
    const auto [in_layers, after] = statistics_of(run);
    CHECK(in_layers == 0);
    CHECK(after > 0);  // the running statistics become their mean: those of 16 features in one call for all layers
    if (std::string(one.job) == "batch_norm") CHECK(after == 1);
    CHECK(std::any_of(run.job.plan.notes.begin(), run.job.plan.notes.end(), [](const std::string& note) {
      return note.find("with sync: false each rank normalizes over its own rows") != std::string::npos;
    }));
  }
}

TEST_CASE(
    "with sync: false a plan that cuts only features has the numbers of one rank, and a network of one rank too") {
  const Overrides cut = {"launch.ranks=2", "parallel.mode=semi_auto_parallel",
                         "parallel.strategies={fc1: [[1, 1], [2, 1]], bn1: [[1, 2]]}"};
  const RunResult one = run_job(with_own_statistics("batch_norm", {"launch.ranks=1"}));
  const RunResult synchronised =
      run_job("batch_norm", {"launch.ranks=1", "train={steps: " + std::to_string(kOwnSteps) + "}"});
  CHECK(same_bits(one.losses, synchronised.losses));
  check_losses(run_job(with_own_statistics("batch_norm", cut)), one, 2e-4, kOwnSteps);
}

TEST_CASE("sync: false with one value per feature on a rank is refused at the layer") {
  try {
    with_own_statistics("batch_norm", {"launch.ranks=24", "parallel.mode=data_parallel"});
    FAIL("it was planned");
  } catch (const SpecError& error) {
    CHECK(error.diagnostics().front().message.find("sync: false leaves each rank 1 value per feature") == 0);
    CHECK(error.diagnostics().front().pos.line == 6);
  }
}
