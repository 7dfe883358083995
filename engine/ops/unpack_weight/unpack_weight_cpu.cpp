// Unpacks a frozen 4- or 8-bit weight (graph/packing.h) to f32. The executor has widened bf16.
#include <algorithm>

#include "engine/graph/packing.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

CpuKernel prepare_unpack_weight(const KernelCall& call) {
  const Packing packing = packing_of(call.attrs.text("packing"));
  float* const to = call.out[0].as<float>();
  const int64_t size = call.out[0].size();
  if (!has_blocks(packing))
    return [=, from = static_cast<const float*>(call.in[0].as<float>())] { std::copy_n(from, size, to); };
  return [=, words = call.in[0].as<uint32_t>()] { unpack_blocks(packing, words, size / kPackedBlock, to); };
}

}  // namespace

extern const CpuKernels unpack_weight_cpu = {{"unpack_weight", prepare_unpack_weight}};

}  // namespace trainctl
