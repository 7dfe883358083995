// Kernels of GPUs that do not take f16 read and write f32 and bf16. For them, a program's f16 operands become f32
// copies in the scratch memory.
#include "engine/runtime/cuda/f16_operands.h"

#include <memory>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/ops/program_kernels.h"
#include "engine/runtime/workspace.h"

namespace trainctl::cuda {
namespace {

struct WidenedOperand {
  uint16_t* halves;
  float* floats;
  int64_t count;
  bool is_read, is_written;
};

/// True if the call only copies a whole f32 operand to f16. ZeRO level 3 rounds weights in this way on the stream of
/// the collectives, whose kernels must not use the scratch memory.
bool only_rounds(const KernelDef& kernel, const CudaKernelCall& call) {
  return &kernel == &copy_slice_kernel && call.in[0].dtype == DType::f32 && call.out[0].dtype == DType::f16 &&
         call.in[0].shape == call.out[0].shape && !call.out[0].accumulate;
}

}  // namespace

CudaKernel prepare_with_float_copies(const CudaKernelDef& def, const KernelDef& kernel, CudaKernelCall call,
                                     std::byte* copies) {
  if (only_rounds(kernel, call))
    return [from = call.in[0].as<const float>(), to = call.out[0].as<uint16_t>(),
            count = call.out[0].size()](CudaStream stream) { enqueue_narrow(from, to, count, stream); };
  if (def.takes_f16)
    if (CudaKernel without_copies = def.prepare(call)) return without_copies;
  std::vector<WidenedOperand> widened;
  const auto widen = [&](TensorArg& arg, bool is_read, bool is_written) {
    if (arg.dtype != DType::f16) return;
    auto* const floats = reinterpret_cast<float*>(copies);
    widened.push_back({arg.as<uint16_t>(), floats, arg.size(), is_read, is_written});
    copies += float_copy_bytes(arg.size());
    arg.data = floats;
    arg.dtype = DType::f32;
  };
  for (TensorArg& in : call.in) widen(in, true, false);
  if (kernel.updates_outputs && !call.out.empty() && call.out.back().dtype == DType::f16) {
    check(call.out[0].dtype == DType::f32 && call.out[0].size() == call.out.back().size(),
          "the f16 copy is of the first output");
    widened.push_back({call.out.back().as<uint16_t>(), call.out[0].as<float>(), call.out[0].size(), false, true});
    call.out.pop_back();
  }
  for (TensorArg& out : call.out) widen(out, out.accumulate || kernel.updates_outputs, true);
  if (widened.empty()) return def.prepare(call);
  call.tf32 = true;
  if (kernel.is_product) call.attrs.set("tf32", true);
  return [widened = std::move(widened), run = def.prepare(call)](CudaStream stream) {
    for (const WidenedOperand& w : widened)
      if (w.is_read) enqueue_widen(w.halves, w.floats, w.count, stream);
    run(stream);
    for (const WidenedOperand& w : widened)
      if (w.is_written) enqueue_narrow(w.floats, w.halves, w.count, stream);
  };
}

}  // namespace trainctl::cuda
