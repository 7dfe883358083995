// Tests that the jobs of configs/ do what their comments promise.
#include <doctest/doctest.h>

#include <filesystem>
#include <numeric>

#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/compile/pass_proof.h"
#include "tests/equivalence/harness.h"

using namespace trainctl;

namespace {

RunResult run_config(const std::string& name) {
  return run_job(plan_job(load_job(std::string(TRAINCTL_SOURCE_DIR) + "/configs/" + name)));
}

double mean_of_epoch(const std::vector<float>& losses, size_t epoch, size_t steps) {
  const auto first = losses.begin() + static_cast<std::ptrdiff_t>((epoch - 1) * steps);
  return std::accumulate(first, first + static_cast<std::ptrdiff_t>(steps), 0.0) / static_cast<double>(steps);
}

}  // namespace

TEST_CASE("a job without a loss runs only the forward pass, and each rank prints its shards") {
  const RunResult run = run_config("allgather.yaml");
  REQUIRE(run.printed.size() == 2);
  for (const auto& [rank, printed] : run.printed) {
    CAPTURE(rank);
    REQUIRE(printed.size() == 1);
    std::string ones = "[4, 8]";
    for (int i = 0; i < 32; ++i) ones += " 1.000000";
    CHECK(printed[0].ends_with(ones));
  }
}

TEST_CASE("the reference job on 8 ranks learns handwritten digits") {
  const RunResult run = run_config("mnist_mlp.yaml");
  constexpr size_t kSteps = 44;  // of 1,437 digits in batches of 32
  REQUIRE(run.losses.size() == 10 * kSteps);
  CHECK(run.losses[0] == doctest::Approx(4.5).epsilon(0.15));
  CHECK(mean_of_epoch(run.losses, 10, kSteps) < 1.2);
  MESSAGE("first loss ", run.losses[0], ", mean of epoch 10 ", mean_of_epoch(run.losses, 10, kSteps));
}

TEST_CASE("the programs of the jobs in configs/ and templates/ have no fault after any pass of the compiler") {
  int proved = 0;
  for (const char* folder : {"/configs", "/templates"}) {
    for (const auto& entry : std::filesystem::directory_iterator(std::string(TRAINCTL_SOURCE_DIR) + folder)) {
      if (entry.path().extension() != ".yaml") continue;
      CAPTURE(entry.path().filename().string());
      // Photos of a user's own: those of configs/shapes.yaml stand for them.
      const bool has_no_data = entry.path().stem() == "image_folder";
      JobSpec spec = load_job(entry.path().string(),
                              has_no_data ? std::vector<std::string>{std::string("dataset.path=") +
                                                                     TRAINCTL_SOURCE_DIR + "/configs/data/shapes"}
                                          : std::vector<std::string>{});
      if (spec.has_command()) continue;
      const PlannedJob job = plan_job(std::move(spec));
      const auto fault = first_pass_fault(job.graph, job.plan, job.cost);
      CHECK((fault ? fault->pass + ": " + fault->text : "") == "");
      ++proved;
    }
  }
  CHECK(proved >= 7);
}
