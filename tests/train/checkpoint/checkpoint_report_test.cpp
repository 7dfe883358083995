// Tests of the sizes of checkpoints that plans report.
#include "engine/train/checkpoint/checkpoint_report.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/compile/compile.h"
#include "engine/compile/rank_classes.h"
#include "engine/planning/compile_job.h"
#include "engine/train/checkpoint/state_image.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;

TEST_CASE("the state of a rank that is compiled without instructions has the file of the whole program") {
  const std::string saves = "train={steps: 2, checkpoint: {every_steps: 1}}";
  const std::vector<std::vector<std::string>> jobs = {
      {"parallel.mode=data_parallel", "launch.ranks=4"},
      {"parallel.mode=data_parallel", "launch.ranks=4", "parallel.optimizer_shard.level=1"},
      {"parallel.mode=data_parallel", "launch.ranks=3", "parallel.optimizer_shard.level=3",
       "optimizer={type: adam, learning_rate: 0.1}"},
      {"parallel.mode=semi_auto_parallel", "launch.ranks=4", "parallel.stages=2", "parallel.micro_batches=2"},
      {"parallel.mode=semi_auto_parallel", "launch.ranks=8", "parallel.stages=2", "parallel.optimizer_shard.level=1",
       "parallel.strategies={'*.up': [[2, 1, 1], [2, 1]]}"},
      {"parallel.mode=parameter_server", "launch.ranks=3", "parallel.servers=2"},
  };
  for (std::vector<std::string> fields : jobs) {
    CAPTURE(fields[0]);
    CAPTURE(fields[1]);
    fields.push_back(saves);
    const PlannedJob job = plan_job(job_spec("gpt", fields));
    StateCompiler states(job.graph, job.plan, job.cost);
    int64_t bytes = 0;
    for (int rank = 0; rank < job.spec.processes(); ++rank) {
      const Program& state = states.compile(rank_of_program(job.plan, rank));
      const StateImage image(state), whole(compile(job, rank));
      CHECK(image.head() == whole.head());
      CHECK(image.bytes() == whole.bytes());
      CHECK(state_image_bytes(state) == whole.bytes());
      bytes += whole.bytes();
    }
    CHECK(checkpoint_report(job).at("bytes") == bytes);
  }
}
