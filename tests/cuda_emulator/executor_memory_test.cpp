// Memory that the executor allocates on its GPU, counted by the stand-in for the CUDA runtime: it must match the plan.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include "engine/planning/compile_job.h"
#include "engine/planning/run_length.h"
#include "engine/runtime/comm/shared_memory_communicator.h"
#include "engine/runtime/cuda/cuda_executor.h"
#include "engine/runtime/workspace.h"
#include "engine/spec/parse.h"
#include "engine/train/data/loader.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/jobs/jobs.h"
#include "tests/train/scratch_folder.h"

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
Taken taken_by(const PlannedJob& job, const Program& program, std::vector<SampleTable> tables,
               std::vector<ByteTable> byte_tables = {}) {
  const auto memory = SharedMemory::create({program.arena_bytes});
  const auto comm = make_shared_memory_communicator(memory, 0, 60);
  ExecutorOptions options;
  options.in_flight = steps_in_flight(job.spec.train);
  options.tables = std::move(tables);
  options.byte_tables = std::move(byte_tables);
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

TEST_CASE("the plan's workspace for data that arrive as bytes is what the executor allocates") {
  const ScratchFolder folder;
  folder.write("train-images-idx3-ubyte", idx_bytes({64, 80, 80}));
  folder.write("train-labels-idx1-ubyte", idx_bytes({64}));
  const auto planned_for = [&](const std::string& transforms) {
    return plan_job(parse_job("dataset: {type: mnist, path: " + folder.path() + ", batch: 32, transforms: [" +
                                  transforms +
                                  "]}\nnetwork: [{type: global_avg_pool}]\nlaunch: {device: cuda, ranks: 1}\n",
                              "job.yaml"));
  };
  // The random flip prevents that samples are kept on the device. Resized images are floats, which no table of bytes
  // has.
  const PlannedJob job = planned_for("horizontal_flip, to_float, hwc2chw");
  const PlannedJob floats =
      planned_for("horizontal_flip, {resize: {size: [40, 40]}}, {resize: {size: [80, 80]}}, hwc2chw");
  const Program program = compile_all(job)[0];
  const auto set = open_dataset(job.spec.dataset, job.spec.seed);
  const std::vector<ByteTable> tables = byte_tables(*set, program);
  REQUIRE(tables.size() == 1);
  taken_by(job, program, {}, tables);  // loads the kernels, with their variables
  CHECK(taken_by(job, program, {}, tables).bytes == program.memory.total());
  const int64_t elements = 32 * 80 * 80;
  const int64_t slots = workspace_of(program, steps_in_flight(job.spec.train)).slots;
  const int64_t table = static_cast<int64_t>(tables[0].values.size() * sizeof(float));
  CHECK(compile_all(floats)[0].memory.workspace - program.memory.workspace == slots * 3 * elements - table);
}
