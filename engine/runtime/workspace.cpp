// See the header.
#include "engine/runtime/workspace.h"

#include <algorithm>

#include "engine/base/round_up.h"
#include "engine/ops/cuda/cuda_scratch.h"
#include "engine/ops/kernel.h"
#include "engine/runtime/cuda/step_kernels.h"

namespace trainctl {
namespace {

/// More than two steps are in flight only if inputs are small: many slots of large inputs would cost too much memory.
constexpr int64_t kMostStaging = 64 << 20;

/// Lays out `wanted` slots for inputs of this size, or as many as fit in `room`, but never fewer than two.
void lay_out_slots(Workspace& w, int64_t input_bytes, int wanted, int64_t room) {
  constexpr int64_t kAlignment = 64;
  w.scalars = round_up(input_bytes, kAlignment);
  w.stride = w.scalars + round_up(static_cast<int64_t>(sizeof(StepScalars)), kAlignment);
  w.slots = std::clamp(wanted, 1, static_cast<int>(std::max<int64_t>(room / w.stride, 2)));
}

/// Each kernel states enough for any launch that combines several.
int64_t scratch_of(const Instruction& i) {
  const KernelDef* kernel = kernel_of(i);
  if (kernel == nullptr) return 0;
  std::vector<Shape> inputs, outputs;
  if (kernel->most_cuda_scratch == nullptr) return most_cuda_scratch(*kernel, inputs, outputs);  // the same for all
  for (const Operand& operand : i.inputs) inputs.push_back(operand.shape);
  for (const Operand& operand : i.outputs) outputs.push_back(operand.shape);
  return most_cuda_scratch(*kernel, inputs, outputs);
}

}  // namespace

Workspace workspace_of(const Program& program, int in_flight) {
  Workspace w;
  lay_out_slots(w, input_layout(program).bytes, in_flight, kMostStaging);
  w.counter = sizeof(cuda::StepCounter);
  for (const Instruction& i : program.instructions) w.scratch = std::max(w.scratch, scratch_of(i));
  return w;
}

Workspace workspace_with(const InputLayout& inputs, const Program& program, int in_flight) {
  Workspace w = workspace_of(program, in_flight);
  lay_out_slots(w, inputs.bytes, in_flight, w.staging());
  return w;
}

}  // namespace trainctl
