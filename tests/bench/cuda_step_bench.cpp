// A job's compiled step on one GPU: its kernels bound by hand, captured into a graph and replayed. No data
// loading: a `load` is a copy from device memory, as where the data set lies on the GPU.
#include <cstdio>
#include <memory>

#include "engine/base/error.h"
#include "engine/ops/random.h"
#include "engine/spec/parse.h"
#include "engine/train/job.h"
#include "tests/bench/cuda_bench.h"

namespace trainctl {
namespace {

struct BoundStep {
  Program program;
  CudaScratch scratch;
  std::unique_ptr<DeviceMemory> arena, data, workspace;
  std::vector<CudaKernel> kernels;  ///< one an instruction
};

TensorArg arg_of(const Operand& o, std::byte* arena) {
  return {arena + o.offset, o.dtype, o.shape, o.global_shape, o.global_offset, o.accumulate};
}

CudaKernel bind(const Instruction& i, BoundStep& step) {
  std::byte* const arena = step.arena->data();
  if (i.opcode == Opcode::load) {
    return
        [to = arena + i.outputs[0].offset, from = step.data->data(), bytes = i.outputs[0].bytes()](CudaStream stream) {
          must(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream), "load");
        };
  }
  check(i.opcode == Opcode::kernel, "a step of one rank has loads and kernels alone");
  const CudaKernelDef* def = find_cuda_kernel(i.op);
  if (def == nullptr) throw EnvError("no CUDA kernel " + i.op);
  CudaKernelCall call;
  for (const Operand& o : i.inputs) call.in.push_back(arg_of(o, arena));
  for (const Operand& o : i.outputs) call.out.push_back(arg_of(o, arena));
  call.attrs = i.attrs;
  call.scalars = reinterpret_cast<const StepScalars*>(arena + step.program.scalars_offset);
  call.micro_batch = i.micro_batch;
  call.scratch = &step.scratch;
  return def->prepare(call);
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
  for (const Instruction& i : step.program.instructions) step.kernels.push_back(bind(i, step));
  step.workspace = std::make_unique<DeviceMemory>(step.scratch.bytes());
  step.scratch.set_memory(step.workspace->data());

  std::printf("%s, %zu instructions\n", job.c_str(), step.kernels.size());
  for (size_t i = 0; i < step.kernels.size(); ++i) {
    const Instruction& code = step.program.instructions[i];
    const Microseconds t = time_graph([&](cudaStream_t s) { step.kernels[i](s); }, 20, 10, 5);
    std::printf("  %2zu %-26s %-20s %7.2f us\n", i, code.name.c_str(),
                code.opcode == Opcode::load ? "load" : code.op.c_str(), t.median);
  }
  const auto run = [&](bool loads) {
    return [&, loads](cudaStream_t s) {
      for (size_t i = 0; i < step.kernels.size(); ++i)
        if (loads || step.program.instructions[i].opcode != Opcode::load) step.kernels[i](s);
    };
  };
  for (const bool loads : {true, false}) {
    const Microseconds one = time_graph(run(loads), 1, 500), ten = time_graph(run(loads), 10, 50);
    std::printf("  step %-14s %7.2f us a replay (%.2f to %.2f); %.2f us in a graph of ten steps\n",
                loads ? "with loads" : "without loads", one.median, one.low, one.high, ten.median);
  }
}

}  // namespace trainctl
