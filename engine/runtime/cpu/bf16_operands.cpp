// See the header.
#include "engine/runtime/cpu/bf16_operands.h"

#include <algorithm>
#include <memory>
#include <string_view>

#include "engine/graph/bf16.h"
#include "engine/ops/kernel_def.h"

namespace trainctl {
namespace {

struct Widened {
  uint16_t* place;
  std::vector<float> values;
  bool read, written;
};

}  // namespace

CpuKernel prepare_with_bf16_operands(const CpuKernelDef& def, KernelCall call) {
  const bool updates = get_kernel(def.name).updates_outputs;
  const auto widened = std::make_shared<std::vector<Widened>>();
  const auto widen = [&](TensorArg& arg, bool read, bool written) {
    if (arg.dtype != DType::bf16) return;
    Widened& w = widened->emplace_back(
        Widened{arg.as<uint16_t>(), std::vector<float>(static_cast<size_t>(arg.size())), read, written});
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
      if (w.read) std::transform(w.place, w.place + w.values.size(), w.values.begin(), from_bf16);
    kernel();
    for (const Widened& w : *widened)
      if (w.written) std::transform(w.values.begin(), w.values.end(), w.place, to_bf16);
  };
}

}  // namespace trainctl
