// An optimizer step over a bucket for a rule that CPUs and GPUs share (lion/lion_rule.h): each element's gradient,
// weight and states are read once and written once.
#pragma once

#include <array>
#include <utility>

#include "engine/ops/cpu/clip_cpu.h"
#include "engine/ops/cpu/half_copy_cpu.h"
#include "engine/ops/cpu/learning_rate_cpu.h"
#include "engine/ops/cpu/threads_cpu.h"

namespace trainctl::cpu {

/// in: gradient, (clip norm^2); out: weight, S states, (bf16 copy of the weight).
///
/// Rule: `auto at(scalars, clip scale)` computes the values that all elements of a step share; `update(gradient,
/// weight&, states)` of its result updates one element.
template <int S, class Rule>
CpuKernel prepare_optimizer(const KernelCall& call, Rule rule) {
  check(call.out.size() > S, "an optimizer's states are outputs after the weight");
  std::array<float*, S> states;
  for (size_t k = 0; k < S; ++k) states[k] = call.out[k + 1].as<float>();
  return with_half_copy(
      call, [=, g = call.in[0].as<const float>(), w = call.out[0].as<float>(), n = call.out[0].size(),
             clip = clip_of(call), rate = LearningRate(call), scalars = call.scalars, threads = call.threads] {
        if (clip.skips()) return;
        StepScalars now = *scalars;
        now.learning_rate = rate.now();
        const auto step = rule.at(now, clip.scale());
        over_elements(threads, n, [=, bounded = clip.bound()](int64_t begin, int64_t end) {
#pragma GCC ivdep
          for (int64_t i = begin; i < end; ++i) {
            std::array<float, S> of;
            for (size_t k = 0; k < S; ++k) of[k] = states[k][i];
            step.update(bounded(g[i]), w[i], of);
            for (size_t k = 0; k < S; ++k) states[k][i] = of[k];
          }
        });
      });
}

}  // namespace trainctl::cpu
