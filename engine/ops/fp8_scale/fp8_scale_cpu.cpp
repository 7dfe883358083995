// amax and update_fp8_scale on CPUs.
#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/kernel.h"
#include "engine/ops/quantise/tensor_scale.h"

namespace trainctl {
namespace {

constexpr int64_t kAmaxPart = 1 << 14;  ///< numbers that a thread takes at a time

/// The largest magnitude of x[begin .. end), as the bits of a float. Bits of magnitudes are ordered like the magnitudes
/// themselves, and a NaN is the largest.
uint32_t amax_bits(const float* x, int64_t begin, int64_t end) {
  uint32_t most = 0;
  for (int64_t i = begin; i < end; ++i) most = std::max(most, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  return most;
}

CpuKernel prepare_amax(const KernelCall& call) {
  const int64_t n = call.in[0].size(), parts = (n + kAmaxPart - 1) / kAmaxPart;
  return [x = call.in[0].as<float>(), out = call.out[0].as<float>(), n, threads = call.threads,
          accumulate = call.out[0].accumulate, most = std::vector<uint32_t>(static_cast<size_t>(parts))]() mutable {
    cpu::over_range(threads, static_cast<int64_t>(most.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p)
        most[static_cast<size_t>(p)] = amax_bits(x, p * kAmaxPart, std::min(n, (p + 1) * kAmaxPart));
    });
    uint32_t all = accumulate ? std::bit_cast<uint32_t>(*out) : 0;
    for (const uint32_t part : most) all = std::max(all, part);
    *out = std::bit_cast<float>(all);
  };
}

CpuKernel prepare_update_fp8_scale(const KernelCall& call) {
  const ScaleUpdate update{std::ldexp(1.0f, static_cast<int>(-call.attrs.integer("margin"))),
                           call.attrs.flag("most_recent"), call.attrs.flag("e5m2")};
  float* const state = call.in[0].as<float>();
  const bool has_ranks = call.in.size() > 1;
  const float* const maxima = has_ranks ? call.in[1].as<float>() : state + kAmaxPlace;
  const int64_t ranks = has_ranks ? call.in[1].size() : 1, steps = call.in[0].size() - kHistoryPlace;
  return [=] {
    float* const history = state + kHistoryPlace;
    std::copy_backward(history, history + steps - 1, history + steps);
    history[0] = ScaleUpdate::kept(std::bit_cast<float>(amax_bits(maxima, 0, ranks)));
    update.set_scale(history[0], *std::max_element(history, history + steps), state);
  };
}

}  // namespace

extern const CpuKernels fp8_scale_cpu = {{"amax", prepare_amax}, {"update_fp8_scale", prepare_update_fp8_scale}};

}  // namespace trainctl
