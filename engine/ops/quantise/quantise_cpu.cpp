// Rounds a matrix to FP8 (quantised.h) per 128 numbers or square of 128 lines. Fused ops run before and after.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>

#include "engine/graph/e4m3.h"
#include "engine/graph/e5m2.h"
#include "engine/ops/cpu/kernels_in_order_cpu.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/fused_kernels.h"
#include "engine/ops/quantise/quantised.h"
#include "engine/ops/quantise/tensor_scale.h"

namespace trainctl {
namespace {

/// Numbers of x as lines: number i of line l is x[l * to_line + i * to_next].
struct Lines {
  const float* x;
  int64_t count, length, to_line, to_next;
  bool squares;
  uint8_t* words;
  float* scales;

  int64_t padded() const { return padded_line(length); }
  int64_t parts() const { return padded() / kScaledTogether; }
  int64_t lines_together() const { return squares ? kScaledTogether : 1; }
};

/// The numbers of a part of some lines; their scale is `scale`.
void quantise_part(const Lines& m, int64_t first, int64_t end, int64_t part, float& scale) {
  const int64_t begin = part * kScaledTogether, stop = std::min(m.length, begin + kScaledTogether);
  uint32_t largest = 0;
  for (int64_t l = first; l < end; ++l) {
    for (int64_t i = begin; i < stop; ++i)
      largest = std::max(largest, std::bit_cast<uint32_t>(m.x[l * m.to_line + i * m.to_next]) & 0x7fffffffu);
  }
  const uint32_t bits = bits_of_scale(largest);
  scale = std::bit_cast<float>(bits);
  const float inverse = std::isfinite(scale) ? std::bit_cast<float>(bits_of_inverse(bits)) : 1.0f;
  for (int64_t l = first; l < end; ++l) {
    uint8_t* const to = m.words + l * m.padded();
    for (int64_t i = begin; i < stop; ++i) to[i] = to_e4m3(m.x[l * m.to_line + i * m.to_next] * inverse);
    std::memset(to + stop, 0, static_cast<size_t>(begin + kScaledTogether - stop));
  }
}

/// Lines [first, end) that have scales together.
void quantise_lines(const Lines& m, int64_t first, int64_t end) {
  const int64_t row = first / kScaledTogether, columns = (m.parts() + 3) / 4 * 4;
  for (int64_t part = 0; part < m.parts(); ++part)
    quantise_part(m, first, end, part, m.squares ? m.scales[row * columns + part] : m.scales[part * m.count + first]);
  if (m.squares) std::fill(m.scales + row * columns + m.parts(), m.scales + (row + 1) * columns, 1.0f);
}

/// The scale of a whole tensor, read when the kernel runs.
struct ScaleOfTensor {
  const float* from;
  int64_t count;
  bool delayed, e5m2;

  TensorScale get() const {
    if (delayed) return delayed_scale(*from);
    uint32_t amax = 0;
    for (int64_t r = 0; r < count; ++r) amax = std::max(amax, std::bit_cast<uint32_t>(from[r]));
    return current_scale(std::bit_cast<float>(amax), e5m2);
  }
};

void quantise_line(const Lines& m, int64_t l, float scale, bool e5m2) {
  uint8_t* const to = m.words + l * m.padded();
  for (int64_t i = 0; i < m.length; ++i) {
    const float v = not_infinite(m.x[l * m.to_line + i * m.to_next]) * scale;
    to[i] = e5m2 ? to_e5m2(v) : to_e4m3(v);
  }
  std::memset(to + m.length, 0, static_cast<size_t>(m.padded() - m.length));
}

/// Rounds x as it is, with one scale.
CpuKernel round_with_one_scale(const KernelCall& call, std::vector<Lines> forms) {
  const TensorArg& from = call.in[1];
  const ScaleOfTensor source{from.as<float>(), from.size(), call.attrs.flag("delayed"), call.attrs.flag("e5m2")};
  return [source, forms = std::move(forms), threads = call.threads] {
    const TensorScale scale = source.get();
    for (const Lines& m : forms) {
      *m.scales = scale.inverse;
      cpu::over_range(threads, m.count, 1, [&](int64_t begin, int64_t end) {
        for (int64_t l = begin; l < end; ++l) quantise_line(m, l, scale.scale, source.e5m2);
      });
    }
  };
}

/// Rounds x as it is.
CpuKernel round_to_8_bits(const KernelCall& call, const TensorArg& x) {
  const int64_t n = x.shape.back(), rows = x.size() / n;
  const bool squares = call.attrs.flag("squares");
  std::vector<Lines> forms;
  const auto add = [&](int64_t count, int64_t length, int64_t to_line, int64_t to_next) {
    const TensorArg &words = call.out[2 * forms.size()], &scales = call.out[2 * forms.size() + 1];
    forms.push_back({x.as<float>(), count, length, to_line, to_next, squares, words.as<uint8_t>(), scales.as<float>()});
  };
  if (call.attrs.flag("rows")) add(rows, n, n, 1);
  if (call.attrs.flag("columns")) add(n, rows, 1, n);
  if (call.attrs.flag("tensor")) return round_with_one_scale(call, std::move(forms));
  return [forms, threads = call.threads] {
    for (const Lines& m : forms) {
      const int64_t together = m.lines_together(), groups = (m.count + together - 1) / together;
      cpu::over_range(threads, groups, 1, [&](int64_t begin, int64_t end) {
        for (int64_t g = begin; g < end; ++g) quantise_lines(m, g * together, std::min(m.count, (g + 1) * together));
      });
    }
  };
}

CpuKernel prepare_quantise(const KernelCall& call) {
  const Epilogue epilogue = epilogue_of(call.attrs);
  std::vector<CpuKernel> kernels;
  TensorArg x = call.in[0];
  if (epilogue.activation != Activation::none || epilogue.slope != Activation::none) {
    const auto memory = std::make_shared<std::vector<float>>(static_cast<size_t>(x.size()));
    x.data = memory->data();
    kernels.push_back(epilogue.slope != Activation::none
                          ? cpu::separate_kernel(slope_kernel(epilogue.slope), call, {call.in[0], call.in[1]}, {x})
                          : cpu::separate_kernel(activation_kernel(epilogue.activation), call, {call.in[0]}, {x}));
    kernels.push_back([memory] {});  // keeps it
  }
  kernels.push_back(round_to_8_bits(call, x));
  if (epilogue.bias_grad) kernels.push_back(cpu::separate_kernel(bias_grad_kernel(), call, {x}, {call.out.back()}));
  return cpu::in_order(std::move(kernels));
}

}  // namespace

extern const CpuKernels quantise_cpu = {{"quantise", prepare_quantise}};

}  // namespace trainctl
