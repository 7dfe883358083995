// LSTM and GRU: one step after another for all samples, a product with the recurrent weight, then the cells.
#include <algorithm>
#include <memory>

#include "engine/ops/kernel.h"
#include "engine/ops/matmul/product_cpu.h"
#include "engine/ops/recurrent/cells.h"

namespace trainctl {
namespace {

using RecurrentFloats = std::vector<float>;

/// Memory for one step of all samples.
struct RecurrentStep {
  RecurrentFloats h, gates, state;

  RecurrentStep(const RecurrentSize& s, int64_t num_gates)
      : h(static_cast<size_t>(s.n * s.h)), gates(static_cast<size_t>(s.n * num_gates * s.h)), state(h.size()) {}
};

RecurrentSize recurrent_size(const TensorArg& y) { return {y.shape[0], y.shape[1], y.shape[2]}; }

/// y, the states, and the values that the gradient needs (kept), step by step in time, backwards with attr reverse.
template <class Cell>
CpuKernel prepare_recurrent(const KernelCall& call) {
  const RecurrentSize s = recurrent_size(call.out[0]);
  const auto step = std::make_shared<RecurrentStep>(s, Cell::kGates);
  const auto product = cpu::prepare_product({.m = s.n,
                                             .n = Cell::kGates * s.h,
                                             .k = s.h,
                                             .a = step->h.data(),
                                             .b = call.in[1].as<float>(),
                                             .c = step->gates.data(),
                                             .transpose_b = true,
                                             .threads = call.threads});
  return [=, gx = call.in[0].as<const float>(), bias = Cell::kHasState ? nullptr : call.in[2].as<const float>(),
          y = call.out[0].as<float>(), states = Cell::kHasState ? call.out[1].as<float>() : nullptr,
          kept = call.out.back().as<float>(), reverse = call.attrs.flag("reverse")] {
    std::ranges::fill(step->h, 0.0f);
    std::ranges::fill(step->state, 0.0f);
    for (int64_t i = 0; i < s.t; ++i) {
      const int64_t t = reverse ? s.t - 1 - i : i;
      product();
      for (int64_t n = 0; n < s.n; ++n) {
        const int64_t row = n * s.t + t;
        for (int64_t u = 0; u < s.h; ++u) {
          float of_x[Cell::kGates], of_h[Cell::kGates], of_kept[Cell::kKept];
          for (int64_t g = 0; g < Cell::kGates; ++g) {
            of_x[g] = gx[(row * Cell::kGates + g) * s.h + u];
            of_h[g] = step->gates[static_cast<size_t>((n * Cell::kGates + g) * s.h + u)];
          }
          const auto at = static_cast<size_t>(n * s.h + u);
          float& h = step->h[at];
          h = Cell::forward(of_x, of_h, bias == nullptr ? 0.0f : bias[u], h, step->state[at], of_kept);
          y[row * s.h + u] = h;
          if (states != nullptr) states[row * s.h + u] = step->state[at];
          for (int64_t k = 0; k < Cell::kKept; ++k) kept[(row * Cell::kKept + k) * s.h + u] = of_kept[k];
        }
      }
    }
  };
}

/// step->h is the output before the step; step->gates the gradient of its product with the weight.
template <class Cell>
CpuKernel prepare_recurrent_grad(const KernelCall& call) {
  const RecurrentSize s = recurrent_size(call.in[1]);
  const int64_t gates = Cell::kGates * s.h;
  const auto step = std::make_shared<RecurrentStep>(s, Cell::kGates);
  const auto dh = std::make_shared<RecurrentFloats>(step->h.size());  // of the output, through the later steps
  const TensorArg &w = call.in.back(), &dw = call.out[1];
  const auto back = cpu::prepare_product({.m = s.n,
                                          .n = s.h,
                                          .k = gates,
                                          .a = step->gates.data(),
                                          .b = w.as<float>(),
                                          .c = dh->data(),
                                          .accumulate = true,
                                          .threads = call.threads});
  const auto of_weight = cpu::prepare_product({.m = gates,
                                               .n = s.h,
                                               .k = s.n,
                                               .a = step->gates.data(),
                                               .b = step->h.data(),
                                               .c = dw.as<float>(),
                                               .transpose_a = true,
                                               .accumulate = true,
                                               .threads = call.threads});
  return [=, dy = call.in[0].as<const float>(), y = call.in[1].as<const float>(),
          states = Cell::kHasState ? call.in[2].as<const float>() : nullptr,
          kept = call.in[call.in.size() - 2].as<const float>(), dgx = call.out[0].as<float>(), to = dw.as<float>(),
          adds = dw.accumulate, db = Cell::kHasState ? nullptr : call.out[2].as<float>(),
          adds_bias = !Cell::kHasState && call.out.back().accumulate, reverse = call.attrs.flag("reverse")] {
    if (!adds) std::fill_n(to, gates * s.h, 0.0f);
    if (db != nullptr && !adds_bias) std::fill_n(db, s.h, 0.0f);
    std::ranges::fill(*dh, 0.0f);
    std::ranges::fill(step->state, 0.0f);  // its gradient
    for (int64_t i = s.t - 1; i >= 0; --i) {
      const int64_t t = reverse ? s.t - 1 - i : i, before = reverse ? t + 1 : t - 1;
      for (int64_t n = 0; n < s.n; ++n) {
        const int64_t row = n * s.t + t, row_before = n * s.t + before;
        for (int64_t u = 0; u < s.h; ++u) {
          const auto at = static_cast<size_t>(n * s.h + u);
          float of_kept[Cell::kKept], of_x[Cell::kGates], of_h[Cell::kGates];
          for (int64_t k = 0; k < Cell::kKept; ++k) of_kept[k] = kept[(row * Cell::kKept + k) * s.h + u];
          const float h_before = i == 0 ? 0.0f : y[row_before * s.h + u];
          const float state = states == nullptr ? 0.0f : states[row * s.h + u];
          const float state_before = states == nullptr || i == 0 ? 0.0f : states[row_before * s.h + u];
          float& dh_here = (*dh)[at];
          dh_here = Cell::backward(dh_here + dy[row * s.h + u], step->state[at], state, state_before, h_before, of_kept,
                                   of_x, of_h);
          step->h[at] = h_before;
          for (int64_t g = 0; g < Cell::kGates; ++g) {
            dgx[(row * Cell::kGates + g) * s.h + u] = of_x[g];
            step->gates[static_cast<size_t>((n * Cell::kGates + g) * s.h + u)] = of_h[g];
          }
          if (db != nullptr) db[u] += of_h[Cell::kGates - 1];
        }
      }
      of_weight();
      back();
    }
  };
}

}  // namespace

extern const CpuKernels recurrent_cpu = {{"lstm", prepare_recurrent<LstmCell>},
                                         {"lstm_grad", prepare_recurrent_grad<LstmCell>},
                                         {"gru", prepare_recurrent<GruCell>},
                                         {"gru_grad", prepare_recurrent_grad<GruCell>}};

}  // namespace trainctl
