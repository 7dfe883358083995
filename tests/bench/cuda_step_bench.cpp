// A job's compiled step on one GPU: its kernels, bound one by one, captured into a graph and replayed. No data
// loading: a `load` is a copy from device memory, as if the device kept the data set.
#include <cstdio>
#include <memory>

#include "engine/base/error.h"
#include "engine/ops/random.h"
#include "engine/ops/small_step/kernel_group_cuda.h"
#include "engine/planning/compile_job.h"
#include "engine/runtime/bound_operands.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/bench/cuda_bench.h"

namespace trainctl {
namespace {

struct BoundStep {
  Program program;
  CudaScratch scratch;
  std::unique_ptr<DeviceMemory> arena, data, workspace;
  struct Launch {
    std::string name;
    bool loads = false;
    CudaKernel run;
  };
  std::vector<Launch> launches;
};

CudaKernelCall call_of(const Instruction& i, BoundStep& step) {
  std::byte* const arena = step.arena->data();
  CudaKernelCall call;
  bind_operands(i, step.program, arena, call);
  call.scratch = &step.scratch;
  return call;
}

CudaKernel bind(const Instruction& i, BoundStep& step) {
  if (i.opcode == Opcode::load) {
    return [to = step.arena->data() + i.outputs[0].offset, from = step.data->data(),
            bytes = i.outputs[0].bytes()](CudaStream stream) {
      must(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream), "load");
    };
  }
  check(i.opcode == Opcode::kernel, "a step of one rank has loads and kernels alone");
  const CudaKernelDef* def = find_cuda_kernel(i.op);
  if (def == nullptr) throw EnvError("no CUDA kernel " + i.op);
  return def->prepare(call_of(i, step));
}

/// The launches of the step, and the instructions that each runs.
void bind_all(BoundStep& step) {
  const std::vector<Instruction>& code = step.program.instructions;
  for (size_t first = 0, end; first < code.size(); first = end) {
    std::vector<GroupedKernel> group;
    std::string name = code[first].name;
    end = end_of_launch(code, first);
    for (size_t i = first + 1; i < end; ++i) name += " | " + code[i].name;
    for (size_t i = first; i < end && end - first > 1; ++i)
      group.push_back({kernel_of(code[i]), call_of(code[i], step)});
    if (std::optional<CudaKernel> whole = group.empty() ? std::nullopt : prepare_group(group)) {
      step.launches.push_back({name, false, std::move(*whole)});
      continue;
    }
    for (size_t i = first; i < end; ++i)
      step.launches.push_back({code[i].name, code[i].opcode == Opcode::load, bind(code[i], step)});
  }
}

void fill(const DeviceMemory& memory, int64_t floats, double size) {
  std::vector<double> values(static_cast<size_t>(floats));
  for (size_t i = 0; i < values.size(); ++i) values[i] = size * (2.0 * philox_uniform(5, i, 0) - 1.0);
  upload(values, DType::f32, memory.data());
}

}  // namespace

void time_step(const std::string& job, const std::vector<std::string>& overrides) {
  const PlannedJob planned = plan_job(load_job(job, overrides));
  BoundStep step{.program = compile(planned, 0)};
  const int64_t arena_floats = (step.program.arena_bytes + 3) / 4;
  step.arena = std::make_unique<DeviceMemory>(arena_floats * 4);
  fill(*step.arena, arena_floats, 0.05);
  const StepScalars scalars{.learning_rate = 1e-5f};
  must(cudaMemcpy(step.arena->data() + step.program.scalars_offset, &scalars, sizeof(scalars), cudaMemcpyHostToDevice),
       "scalars");
  int64_t largest = 0;
  for (const Instruction& i : step.program.instructions)
    if (i.opcode == Opcode::load) largest = std::max(largest, i.outputs[0].bytes());
  step.data = std::make_unique<DeviceMemory>(largest + 16);
  fill(*step.data, largest / 4, 1.0);
  bind_all(step);
  step.workspace = std::make_unique<DeviceMemory>(step.scratch.bytes());
  step.scratch.set_memory(step.workspace->data());

  std::printf("%s, %zu instructions in %zu launches\n", job.c_str(), step.program.instructions.size(),
              step.launches.size());
  for (const BoundStep::Launch& launch : step.launches) {
    const Microseconds t = time_graph([&](cudaStream_t s) { launch.run(s); }, 20, 10, 5);
    std::printf("  %7.2f us  %s\n", t.median, launch.name.c_str());
  }
  const auto run = [&](bool loads) {
    return [&, loads](cudaStream_t s) {
      for (const BoundStep::Launch& launch : step.launches)
        if (loads || !launch.loads) launch.run(s);
    };
  };
  for (const bool loads : {true, false}) {
    const Microseconds one = time_graph(run(loads), 1, 500), ten = time_graph(run(loads), 10, 50);
    std::printf("  step %-14s %7.2f us a replay (%.2f to %.2f); %.2f us in a graph of ten steps\n",
                loads ? "with loads" : "without loads", one.median, one.low, one.high, ten.median);
  }
}

}  // namespace trainctl
