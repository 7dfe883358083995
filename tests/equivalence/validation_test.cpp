// Tests of validation during training: it has the same numbers under every plan, and does not change the training.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "engine/model/evaluation.h"
#include "engine/planning/compile_job.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/equivalence/harness.h"
#include "tests/equivalence/plan_cases.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;

namespace {

const std::vector<std::string> kValidationShort = {"train={steps: 7}"};
const std::vector<std::string> kValidated = {"validation={dataset: {samples: 103}, every_steps: 3}"};

void require_same_bits(const RunResult& a, const RunResult& b) {
  CHECK(a.losses == b.losses);
  CHECK(a.weights == b.weights);
}

void require_close(const RunResult& a, const RunResult& b, double tolerance) {
  REQUIRE(a.validations.size() == b.validations.size());
  for (size_t v = 0; v < a.validations.size(); ++v) {
    CHECK(a.validations[v].samples == b.validations[v].samples);
    REQUIRE(a.validations[v].values.size() == b.validations[v].values.size());
    for (size_t i = 0; i < a.validations[v].values.size(); ++i) {
      const double x = a.validations[v].values[i].second, y = b.validations[v].values[i].second;
      CAPTURE(a.validations[v].values[i].first);
      CHECK(std::fabs(x - y) <= tolerance * std::max(1.0, std::fabs(y)));
    }
  }
}

/// All rows of the table with TRAINCTL_TEST_ALL_PLANS=1, else one for each way in which plans differ.
bool is_run(const PlanCase& plan) {
  if (std::getenv("TRAINCTL_TEST_ALL_PLANS") != nullptr) return true;
  for (const char* name :
       {"mlp: data parallel, 3 ranks, level 3, micro-batches", "mlp: clipped, 4 ranks, level 2",
        "mlp: groups, clipped, 4 ranks, level 1", "mlp: 2 stages of one rank, 1f1b",
        "mlp: 2 stages of 2, level 3, recompute all", "batch_norm: batch and features, 8 ranks, level 1",
        "batch_norm: 2 stages of 2, recompute, gpipe", "convnet: batch and channels, 4 ranks",
        "classifier: ignored labels, 2 stages of 2, 4 micro-batches, as with one",
        "masks: 3 stages of 2, 4 micro-batches, recompute, gpipe", "masks: one rank, 2 micro-batches",
        "language: tied over 2 stages, vocabulary cut in 3, clipped", "language: data parallel, 4 ranks",
        "hybrid: masks in 2 stages of 2", "gpt: 3 stages of 2 chunks of 2 ranks, level 1, blocks recomputed",
        "language: zero_bubble, tied over 2 stages of 2, level 3", "mlp: ranks with 4 and 2 micro-batches",
        "gpt: averaged weights, ranks with 4 and 2 micro-batches"})
    if (plan.name == name) return true;
  return false;
}

}  // namespace

TEST_CASE("a validation has the numbers of one rank under every plan, and does not change a bit of the training") {
  for (const PlanCase& plan : plan_cases()) {
    if (!is_run(plan)) continue;
    SUBCASE(plan.name.c_str()) {
      const JobSpec job = job_spec(plan.job, plan.same + plan.plan);
      if (!job.loss || job.dataset.type == "mnist") continue;
      const RunResult plain = run_job(plan.job, plan.same + plan.plan + kValidationShort);
      const RunResult validated = run_job(plan.job, plan.same + plan.plan + kValidationShort + kValidated);
      require_same_bits(validated, plain);
      REQUIRE(validated.validations.size() == 3);  // after 3, 6 and 7 steps
      const char* reference = plan.reference != nullptr ? plan.reference : plan.job;
      require_close(validated, run_job(reference, plan.same + kValidationShort + kValidated), 20 * plan.tolerance);
    }
  }
}

TEST_CASE("each sample of a validation counts once, even if the samples do not fill the last batch") {
  // The weights hardly move, so the batch does not matter.
  const auto run = [](const char* job, const char* batch) {
    return run_job(job, {"optimizer={type: sgd, learning_rate: 1e-30}", "train={steps: 1}", batch,
                         "validation={dataset: {samples: 1003}}"});
  };
  for (const char* job : {"mlp", "classifier", "pairs"}) {
    CAPTURE(job);
    const RunResult divides = run(job, "dataset.batch=17"), filled_up = run(job, "dataset.batch=24");
    REQUIRE(divides.validations.size() == 1);
    CHECK(divides.validations[0].samples == 1003);
    require_close(filled_up, divides, 1e-6);
  }
}

TEST_CASE(
    "evaluation programs of every plan pass verification in fp32 and bf16, during training and alone with only "
    "weights") {
  for (const PlanCase& plan : plan_cases()) {
    const JobSpec spec = job_spec(plan.job, plan.same + plan.plan);
    if (!spec.loss) continue;
    CAPTURE(plan.name);
    for (const char* precision : {"precision=fp32", "precision=bf16"}) {
      const PlannedJob job = plan_job(job_spec(plan.job, plan.same + plan.plan + std::vector<std::string>{precision} +
                                                             std::vector<std::string>{"validation={}"}));
      const RankClasses training = compile_classes(job), alone = compile_validation_classes(job, false),
                        beside = compile_validation_classes(job);  // compiling throws if verification fails
      for (int rank = 0; rank < alone.num_ranks(); ++rank) {
        const Memory& memory = alone.program_of(rank).memory;
        CHECK(memory.gradients + memory.optimizer + memory.master == 0);
        CHECK(beside.program_of(rank).memory.optimizer == training.program_of(rank).memory.optimizer);
      }
    }
  }
}

TEST_CASE("an evaluation reads running statistics and has no dropout") {
  const PlannedJob masks = plan_job(job_spec("masks", {}));
  const Graph evaluation = evaluation_graph(masks.graph);
  for (const Node& node : evaluation.nodes) {
    CHECK(node.op != "dropout");
    CHECK(node.phase == Phase::forward);
  }
  const PlannedJob norms = plan_job(job_spec("batch_norm", {}));
  int read = 0;
  for (const Node& node : evaluation_graph(norms.graph).nodes) {
    CHECK(node.op != "batch_norm_mean");
    CHECK(node.op != "batch_norm_running");
    if (node.op != "batch_norm") continue;
    ++read;
    CHECK(norms.graph.tensors[static_cast<size_t>(node.inputs[1])].kind == TensorKind::state);
    CHECK(norms.graph.tensors[static_cast<size_t>(node.inputs[2])].kind == TensorKind::state);
  }
  CHECK(read > 0);
}
