// An optimizer step whose rate depends on norms of the whole parameter (lamb/lamb_rule.h), for a rule that CPUs and
// GPUs share.
#pragma once

#include <array>
#include <cmath>

#include "engine/ops/cpu/clip_cpu.h"
#include "engine/ops/cpu/half_copy_cpu.h"
#include "engine/ops/cpu/learning_rate_cpu.h"
#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/whole_parameters.h"

namespace trainctl::cpu {

/// in: gradient, (clip norm^2); out: weight, S states, (bf16 copy of the weight).
///
/// Rule: `auto at(scalars, clip scale)` computes what all elements of a step share. Of its result, `begin(gradient,
/// states)` updates states, `direction(gradient, weight, states)` returns the number whose norm is set against that of
/// the weight, `ratio(norm of weights, norm of directions)` the factor of the rate, and `update(gradient, weight&,
/// states, ratio)` changes the weight.
template <int S, class Rule>
CpuKernel prepare_layerwise(const KernelCall& call, Rule rule) {
  check(call.out.size() > S, "an optimizer's states are outputs after the weight");
  std::array<float*, S> states;
  for (size_t k = 0; k < S; ++k) states[k] = call.out[k + 1].as<float>();
  return with_half_copy(call, [=, g = call.in[0].as<const float>(), w = call.out[0].as<float>(), clip = clip_of(call),
                               rate = LearningRate(call), scalars = call.scalars, parameters = whole_parameters(call)] {
    if (clip.skips()) return;
    StepScalars now = *scalars;
    now.learning_rate = rate.now();
    const auto step = rule.at(now, clip.scale());
    for (const WholeParameter& p : parameters) {
      const auto load = [&](int64_t i) {
        std::array<float, S> of;
        for (size_t k = 0; k < S; ++k) of[k] = states[k][i];
        return of;
      };
      const auto store = [&](int64_t i, const std::array<float, S>& of) {
        for (size_t k = 0; k < S; ++k) states[k][i] = of[k];
      };
      for (int64_t i = p.first; i < p.first + p.size(); ++i) {
        std::array<float, S> of = load(i);
        step.begin(clip.bounded(g[i]), of);
        store(i, of);
      }
      const double weights = sum(p.size(), [&](int64_t i) { return double{w[p.first + i]} * w[p.first + i]; });
      const double directions = sum(p.size(), [&](int64_t i) {
        const int64_t at = p.first + i;
        const double d = step.direction(clip.bounded(g[at]), w[at], load(at));
        return d * d;
      });
      const float ratio = step.ratio(static_cast<float>(std::sqrt(weights)), static_cast<float>(std::sqrt(directions)));
      for (int64_t i = p.first; i < p.first + p.size(); ++i) {
        std::array<float, S> of = load(i);
        step.update(clip.bounded(g[i]), w[i], of, ratio);
        store(i, of);
      }
    }
  });
}

}  // namespace trainctl::cpu
