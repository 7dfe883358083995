// CPU kernels compute on f32. For them, a program's bf16 and f16 operands become f32 copies.
#include "engine/runtime/cpu/half_operands.h"

#include <memory>
#include <string_view>

#include "engine/graph/half.h"
#include "engine/ops/kernel_def.h"

namespace trainctl {
namespace {

struct Widened {
  DType type;
  uint16_t* place;
  std::vector<float> values;
  bool read, written;
};

}  // namespace

CpuKernel prepare_with_float_copies(const CpuKernelDef& def, KernelCall call) {
  const bool updates = get_kernel(def.name).updates_outputs;
  const auto widened = std::make_shared<std::vector<Widened>>();
  const auto widen = [&](TensorArg& arg, bool read, bool written) {
    if (!is_half(arg.dtype)) return;
    Widened& w = widened->emplace_back(
        Widened{arg.dtype, arg.as<uint16_t>(), std::vector<float>(static_cast<size_t>(arg.size())), read, written});
    arg.data = w.values.data();
    arg.dtype = DType::f32;
  };
  for (TensorArg& in : call.in) widen(in, true, false);
  for (TensorArg& out : call.out)
    if (!updates) widen(out, out.accumulate, true);
  CpuKernel kernel = def.prepare(call);
  if (widened->empty()) return kernel;
  return [widened, kernel = std::move(kernel)] {
    for (Widened& w : *widened)
      if (w.read) halves_to_floats(w.type, w.place, static_cast<int64_t>(w.values.size()), w.values.data());
    kernel();
    for (const Widened& w : *widened)
      if (w.written) floats_to_halves(w.type, w.values.data(), static_cast<int64_t>(w.values.size()), w.place);
  };
}

}  // namespace trainctl
