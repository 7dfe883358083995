// The update of Adafactor (adafactor_rule.h) on a CPU, for this rank's elements of a bucket.
#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/ops/adafactor/adafactor_rule.h"
#include "engine/ops/cpu/clip_cpu.h"
#include "engine/ops/cpu/half_copy_cpu.h"
#include "engine/ops/cpu/learning_rate_cpu.h"

namespace trainctl {
namespace {

/// Calls each(row, col, at, count) for each run of elements within one row. `row`: matrix * rows + row; `col`: the
/// first column; `at`: index of the first element in the operand; `count`: elements of the run.
template <class Each>
void for_each_run(const PlacedParameter& p, const PlacedRange& range, Each each) {
  const int64_t width = p.local_cols();
  for (int64_t at = range.begin; at < range.end;) {
    const int64_t col = at % width, count = std::min(width - col, range.end - at);
    each(p.whole_row(at / width), col + p.first_col(), range.at + at - range.begin, count);
    at += count;
  }
}

/// sums [out]: for each factored parameter the squares of its gradients by row and by column; for each parameter the
/// sum of the squares of its weights.
CpuKernel prepare_sums(const KernelCall& call) {
  const std::vector<AdafactorPlace> places = adafactor_places(call.attrs);
  std::vector<double> columns;
  for (const AdafactorPlace& place : places)
    if (place.is_factored())
      columns.resize(std::max(columns.size(), static_cast<size_t>(place.p.matrices() * place.p.cols())));
  return [=, columns = std::move(columns), g = call.in[0].as<const float>(), w = call.in.back().as<const float>(),
          out = call.out[0].as<float>(), elements = call.out[0].size(), adds = call.out[0].accumulate,
          n = call.in[0].size(), first = call.attrs.integer("first"), clip = cpu::clip_of(call)]() mutable {
    if (!adds) std::fill(out, out + elements, 0.0f);
    const float scale = clip.scale();
    for (const AdafactorPlace& place : places) {
      const PlacedRange range = placed_range(place.p, first, n);
      if (range.size() <= 0) continue;
      const int64_t R = place.p.rows(), C = place.p.cols(), matrices = place.p.matrices();
      double weights = 0;
      std::fill(columns.begin(), columns.end(), 0.0);
      for_each_run(place.p, range, [&](int64_t row, int64_t col, int64_t at, int64_t count) {
        double squares = 0;
        double* const sums = columns.data() + (place.is_factored() ? row / R * C + col : 0);
        for (int64_t i = 0; i < count; ++i) {
          weights += double{w[at + i]} * w[at + i];
          if (!place.is_factored()) continue;
          const double grad = scale * clip.bounded(g[at + i]);
          squares += grad * grad;
          sums[i] += grad * grad;
        }
        if (place.is_factored()) out[place.sums + row] += static_cast<float>(squares);
      });
      for (int64_t c = 0; place.is_factored() && c < matrices * C; ++c)
        out[place.sums + matrices * R + c] += static_cast<float>(columns[static_cast<size_t>(c)]);
      out[place.weight_sum()] += static_cast<float>(weights);
    }
  };
}

CpuKernel prepare_states(const KernelCall& call) {
  return [places = adafactor_places(call.attrs), sums = call.in[0].as<const float>(), states = call.out[0].as<float>(),
          means = call.out[1].as<float>(), scalars = call.scalars, clip = cpu::clip_of(call)] {
    const bool skips = clip.skips();
    const float rate = scalars->square_rate;
    for (const AdafactorPlace& place : places) {
      const int64_t R = place.p.rows(), C = place.p.cols(), rows = place.p.matrices() * R;
      for (int64_t i = 0; !skips && i < place.state_elements(); ++i) {
        const float mean = sums[place.sums + i] / static_cast<float>(i < rows ? C : R);
        float& state = states[place.states + i];
        state += rate * (mean - state);
      }
      for (int64_t m = 0; m < place.p.matrices(); ++m) {
        double total = 0;
        for (int64_t r = 0; r < R; ++r) total += states[place.states + m * R + r];
        means[place.means + m] = static_cast<float>(total / static_cast<double>(R));
      }
    }
  };
}

/// Variances of the elements of a matrix from its states, or of a vector from those of its elements.
struct Variances {
  AdafactorRule rule;
  const float* states;  ///< states of rows and columns, or of elements before this step
  const float* means;

  /// The variance of an element. `g`: its gradient after clipping.
  float at(const AdafactorPlace& place, int64_t row, int64_t col, int64_t element, float g, float rate) const {
    if (!place.is_factored()) return states[element] + rate * (g * g - states[element]);
    const int64_t R = place.p.rows(), C = place.p.cols(), matrix = row / R;
    return rule.variance(states[place.states + row], states[place.states + place.p.matrices() * R + matrix * C + col],
                         means[place.means + matrix]);
  }
};

bool is_factored(const std::vector<AdafactorPlace>& places) { return !places.empty() && places[0].is_factored(); }

/// norms [out]: for each parameter the sum of the squares of its change before it is limited.
CpuKernel prepare_norms(const KernelCall& call) {
  const std::vector<AdafactorPlace> places = adafactor_places(call.attrs);
  const size_t last = call.in.size() - 1;
  const bool factored = is_factored(places);
  const Variances variances{AdafactorRule::of(call.attrs), call.in[factored ? last - 1 : last].as<const float>(),
                            factored ? call.in[last].as<const float>() : nullptr};
  return [=, g = call.in[0].as<const float>(), out = call.out[0].as<float>(), adds = call.out[0].accumulate,
          n = call.in[0].size(), first = call.attrs.integer("first"), clip = cpu::clip_of(call),
          scalars = call.scalars] {
    if (!adds) std::fill(out, out + places.size(), 0.0f);
    const float scale = clip.scale(), rate = scalars->square_rate;
    for (const AdafactorPlace& place : places) {
      double squares = 0;
      for_each_run(place.p, placed_range(place.p, first, n), [&](int64_t row, int64_t col, int64_t at, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
          const float grad = scale * clip.bounded(g[at + i]);
          const double u = variances.rule.change(grad, variances.at(place, row, col + i, at + i, grad, rate));
          squares += u * u;
        }
      });
      out[place.index] += static_cast<float>(squares);
    }
  };
}

/// Updates the weights. Inputs from `sums_at` on: sums, norms, and with factors the states of rows and columns; without
/// factors, the variances of elements are the second output.
CpuKernel prepare_update(const KernelCall& call) {
  const std::vector<AdafactorPlace> places = adafactor_places(call.attrs);
  const bool factored = is_factored(places);
  const size_t sums_at = call.in.size() - (factored ? 4 : 2);
  float* const own = factored ? nullptr : call.out[1].as<float>();
  const Variances variances{AdafactorRule::of(call.attrs), factored ? call.in[sums_at + 2].as<const float>() : own,
                            factored ? call.in[sums_at + 3].as<const float>() : nullptr};
  return cpu::with_half_copy(call, [=, g = call.in[0].as<const float>(), w = call.out[0].as<float>(),
                                    n = call.out[0].size(), sums = call.in[sums_at].as<const float>(),
                                    norms = call.in[sums_at + 1].as<const float>(), first = call.attrs.integer("first"),
                                    clip = cpu::clip_of(call), lr = cpu::LearningRate(call), scalars = call.scalars] {
    if (clip.skips()) return;
    const float scale = clip.scale(), rate = scalars->square_rate;
    const float decaying = lr.now() * variances.rule.decay;  // a factor 1 - decaying would be rounded in each step
    for (const AdafactorPlace& place : places) {
      const float step = variances.rule.step(sums[place.weight_sum()], norms[place.index], place.p.whole_size(),
                                             std::min(lr.now(), scalars->relative_rate));
      for_each_run(place.p, placed_range(place.p, first, n), [&](int64_t row, int64_t col, int64_t at, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
          const float grad = scale * clip.bounded(g[at + i]);
          const float variance = variances.at(place, row, col + i, at + i, grad, rate);
          if (own != nullptr) own[at + i] = variance;
          w[at + i] -= decaying * w[at + i] + step * variances.rule.change(grad, variance);
        }
      });
    }
  });
}

}  // namespace

extern const CpuKernels adafactor_cpu = {{"adafactor_sums", prepare_sums},
                                         {"adafactor_states", prepare_states},
                                         {"adafactor_norms", prepare_norms},
                                         {"adafactor_update", prepare_update}};

}  // namespace trainctl
