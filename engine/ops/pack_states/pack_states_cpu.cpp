// Packing and unpacking of optimizer states on CPUs; see pack_states.cpp.
#include <cmath>

#include "engine/graph/bf16.h"
#include "engine/ops/cpu/clip_cpu.h"
#include "engine/ops/pack_states/packed_state.h"
#include "engine/ops/placed_parameters.h"

namespace trainctl {
namespace {

CpuKernel prepare_unpack_states(const KernelCall& call) {
  const int64_t n = call.out[0].size();
  float* const out = call.out[0].as<float>();
  if (call.in.size() == 1 && call.in[0].dtype == DType::bf16)
    return [=, in = call.in[0].as<const uint16_t>()] {
      for (int64_t i = 0; i < n; ++i) out[i] = from_bf16(in[i]);
    };
  if (call.in.size() == 1)  // bf16: the executor has already widened the input to f32 (half_operands.h)
    return [=, in = call.in[0].as<const float>()] { std::copy_n(in, n, out); };
  return [=, codes = call.in[0].as<const uint8_t>(), scales = call.in[1].as<const float>(),
          values = StateCodes::of(!call.attrs.flag("squares"))] {
    for (int64_t i = 0; i < n; ++i) out[i] = values.values[codes[i]] * scales[i / kStateBlock];
  };
}

CpuKernel prepare_rounding(const KernelCall& call) {
  return [n = call.in[0].size(), in = call.in[0].as<const float>(), out = call.out[0].as<uint16_t>(),
          wide = call.out[0].dtype == DType::f32 ? call.out[0].as<float>() : nullptr,
          parameters = placed_parameters(call.attrs), first = call.attrs.integer("first"),
          state = call.attrs.integer("state"), seed = call.seed, scalars = call.scalars] {
    for (const PlacedParameter& p : parameters) {
      const RoundingBits bits = RoundingBits::of(seed, p.key, state, scalars->step);
      const PlacedRange range = placed_range(p, first, n);
      for (int64_t e = range.begin; e < range.end; ++e) {
        const int64_t at = range.at + e - range.begin;
        const uint16_t rounded = round_at_random(in[at], bits.at(p.whole_index(e)));
        if (wide != nullptr)  // the executor then narrows the f32 value to bf16, which changes no value
          wide[at] = from_bf16(rounded);
        else
          out[at] = rounded;
      }
    }
  };
}

CpuKernel prepare_pack_states(const KernelCall& call) {
  if (call.out.size() == 1) return prepare_rounding(call);
  return [n = call.in[0].size(), in = call.in[0].as<const float>(), codes = call.out[0].as<uint8_t>(),
          scales = call.out[1].as<float>(), values = StateCodes::of(!call.attrs.flag("squares")),
          clip = cpu::clip_of(call)] {
    if (clip.skips()) return;
    for (int64_t block = 0; block < n; block += kStateBlock) {
      const int64_t end = std::min(n, block + kStateBlock);
      float most = 0;
      for (int64_t i = block; i < end; ++i) most = std::max(most, std::fabs(in[i]));
      scales[block / kStateBlock] = most;
      for (int64_t i = block; i < end; ++i) codes[i] = values.nearest(most > 0 ? in[i] / most : 0);
    }
  };
}

}  // namespace

extern const CpuKernels pack_states_cpu = {{"unpack_states", prepare_unpack_states},
                                           {"pack_states", prepare_pack_states}};

}  // namespace trainctl
