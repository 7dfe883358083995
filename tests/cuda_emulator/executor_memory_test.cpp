// What the executor allocates on its GPU, counted by the stand-in for the CUDA runtime: it must be what the plan says.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include "engine/runtime/comm/shared_memory_communicator.h"
#include "engine/runtime/cuda/cuda_executor.h"
#include "engine/runtime/workspace.h"
#include "engine/spec/parse.h"
#include "engine/train/data/loader.h"
#include "engine/train/job.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;

namespace {

int64_t free_bytes() {
  size_t free = 0, total = 0;
  REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
  return static_cast<int64_t>(free);
}

struct Taken {
  int64_t bytes = 0;
  InputLayout inputs;
};

/// Allocations by the executor of the only rank, with as many tables as there is room for.
Taken taken_by(const PlannedJob& job, const Program& program, std::vector<SampleTable> tables) {
  const auto memory = SharedMemory::create({program.arena_bytes});
  const auto comm = make_shared_memory_communicator(memory, 0, 60);
  ExecutorOptions options;
  options.in_flight = steps_in_flight(job.spec.train);
  options.tables = std::move(tables);
  const int64_t before = free_bytes();
  const auto executor = make_cuda_executor(program, *comm, options, {});
  return {before - free_bytes(), executor->inputs()};
}

}  // namespace

TEST_CASE("an executor takes the arena and the workspace that the plan shows, and the data set beside them") {
  for (const char* name : {"mlp", "classifier", "language", "attention"}) {
    for (const char* sink_steps : {"train.sink_steps=1", "train.sink_steps=1000"}) {
      const PlannedJob job = plan_job(job_spec(name, {"launch.device=cuda", sink_steps}));
      CAPTURE(job.spec.name);
      CAPTURE(sink_steps);
      const Program program = compile_all(job)[0];
      const Memory& planned = program.memory;
      taken_by(job, program, {});  // loads the kernels, with their variables
      CHECK(taken_by(job, program, {}).bytes == planned.total());
      const auto set = open_dataset(job.spec.dataset, job.spec.seed);
      const Taken with_data = taken_by(job, program, sample_tables(*set, program));
      CHECK(with_data.bytes == planned.total() - planned.unsent + planned.data_set);
      CHECK(planned.unsent > 0);
    }
  }
}
