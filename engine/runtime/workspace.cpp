// GPU memory that a rank uses in addition to the program's arena, derived from the program: the executor allocates
// these sizes, and `trainctl plan` shows them.
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

/// Lays out the staging memory: `wanted` slots for inputs of this size, or as many as fit in `room` bytes, but at least
/// two.
void lay_out_slots(Workspace& w, int64_t input_bytes, int wanted, int64_t room) {
  constexpr int64_t kAlignment = 64;
  w.scalars = round_up(input_bytes, kAlignment);
  w.stride = w.scalars + round_up(static_cast<int64_t>(sizeof(StepScalars)), kAlignment);
  w.slots = std::clamp(wanted, 1, static_cast<int>(std::max<int64_t>(room / w.stride, 2)));
}

/// The scratch memory in bytes that a kernel states. The number also suffices for a launch that combines it with
/// others.
int64_t scratch_of_kernel(const Instruction& i, const KernelDef* kernel) {
  std::vector<Shape> inputs, outputs;
  if (kernel->most_cuda_scratch == nullptr) return most_cuda_scratch(*kernel, inputs, outputs);  // the same for all
  for (const Operand& operand : i.inputs) inputs.push_back(operand.shape);
  for (const Operand& operand : i.outputs) outputs.push_back(operand.shape);
  return most_cuda_scratch(*kernel, inputs, outputs);
}

}  // namespace

int64_t float_copy_bytes(int64_t elements) {
  constexpr int64_t kCopyAlignment = 256;
  return round_up(elements * byte_size(DType::f32), kCopyAlignment);
}

ScratchUse scratch_of(const Instruction& instruction) {
  ScratchUse use;
  const KernelDef* kernel = kernel_of(instruction);
  if (kernel == nullptr) return use;
  const auto add = [&](const Operand& operand) {
    if (operand.dtype == DType::f16) use.copies += float_copy_bytes(num_elements(operand.shape));
  };
  for (const Operand& operand : instruction.inputs) add(operand);
  for (const Operand& operand : instruction.outputs) add(operand);
  use.kernel = scratch_of_kernel(instruction, kernel);
  if (use.copies > 0) use.kernel = float_copy_bytes(use.kernel / byte_size(DType::f32) + 1);  // copies are aligned
  return use;
}

Workspace workspace_of(const Program& program, int in_flight) {
  Workspace w;
  lay_out_slots(w, input_layout(program).bytes, in_flight, kMostStaging);
  w.counter = sizeof(cuda::StepCounter);
  for (const Instruction& i : program.instructions) {
    const ScratchUse use = scratch_of(i);
    w.scratch = std::max(w.scratch, use.kernel + use.copies);
  }
  return w;
}

Workspace workspace_with(const InputLayout& inputs, const Program& program, int in_flight) {
  Workspace w = workspace_of(program, in_flight);
  lay_out_slots(w, inputs.bytes, in_flight, w.staging());
  return w;
}

}  // namespace trainctl
