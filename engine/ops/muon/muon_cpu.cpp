// The update of Muon (muon_rule.h) on a CPU, for one matrix of a bucket after another, in f32.
#include <cmath>

#include "engine/ops/cpu/clip_cpu.h"
#include "engine/ops/cpu/half_copy_cpu.h"
#include "engine/ops/cpu/learning_rate_cpu.h"
#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/matmul/product_cpu.h"
#include "engine/ops/muon/muon_rule.h"

namespace trainctl {
namespace {

/// A Newton-Schulz step: `from` and `to` are X before and after it.
struct MuonStep {
  CpuKernel gram, square, product;
  const float* from;
  float* to;
};

class MuonMatrix {
 public:
  MuonMatrix(const WholeParameter& p, float* work, int threads)
      : parameter(p), side_(std::min(p.rows, p.cols)), space_(p), work_(work) {
    const bool is_wide = p.rows <= p.cols;
    float *const a = work + space_.gram, *const factor = work + space_.factor;
    for (int i = 0; i < kMuonSteps; ++i) {
      float *const x = at(i), *const next = at(i + 1);
      cpu::Product gram{.m = side_, .n = side_, .k = is_wide ? p.cols : p.rows, .a = x, .b = x, .c = a};
      (is_wide ? gram.transpose_b : gram.transpose_a) = true;
      cpu::Product square{.m = side_, .n = side_, .k = side_, .a = a, .b = a, .c = factor};
      cpu::Product product{.m = p.rows, .n = p.cols, .k = side_, .c = next, .accumulate = true};
      product.a = is_wide ? factor : x;
      product.b = is_wide ? x : factor;
      gram.threads = square.threads = product.threads = threads;
      steps_.push_back(
          {cpu::prepare_product(gram), cpu::prepare_product(square), cpu::prepare_product(product), x, next});
    }
  }

  float* start() { return work_ + space_.x0; }

  /// Returns the matrix.
  const float* iterate() {
    const float* const a = work_ + space_.gram;
    float* const factor = work_ + space_.factor;
    for (const MuonStep& step : steps_) {
      step.gram();
      step.square();
      for (int64_t i = 0; i < side_ * side_; ++i) factor[i] = kMuonB * a[i] + kMuonC * factor[i];
      for (int64_t i = 0; i < parameter.size(); ++i) step.to[i] = kMuonA * step.from[i];
      step.product();
    }
    return steps_.back().to;
  }

  const WholeParameter parameter;

 private:
  float* at(int step) { return work_ + (step % 2 == 0 ? space_.x0 : space_.x1); }

  const int64_t side_;
  const MuonSpace space_;
  float* const work_;
  std::vector<MuonStep> steps_;
};

/// For each matrix: moves the momentum, normalizes the direction, orthogonalizes it and descends along it.
CpuKernel prepare_muon_update(const KernelCall& call) {
  check(call.out.size() > 2 && call.out[2].dtype == DType::i32, "muon has a momentum and work space");
  std::vector<MuonMatrix> matrices;
  for (const WholeParameter& p : whole_parameters(call))
    matrices.emplace_back(p, reinterpret_cast<float*>(call.out[2].data), call.threads);
  return cpu::with_half_copy(
      call, [g = call.in[0].as<const float>(), w = call.out[0].as<float>(), m = call.out[1].as<float>(),
             settings = MuonSettings::of(call.attrs), clip = cpu::clip_of(call), rate = cpu::LearningRate(call),
             matrices = std::move(matrices)]() mutable {
        if (clip.skips()) return;
        const float scale = clip.scale(), decaying = rate.now() * settings.decay;
        for (MuonMatrix& matrix : matrices) {
          const int64_t first = matrix.parameter.first, n = matrix.parameter.size();
          float* const x = matrix.start();
          for (int64_t i = 0; i < n; ++i) {
            const float grad = scale * clip.bounded(g[first + i]);
            m[first + i] = settings.moved(grad, m[first + i]);
            x[i] = settings.direction(grad, m[first + i]);
          }
          const double squares = cpu::sum(n, [x](int64_t i) { return double{x[i]} * x[i]; });
          const float inverse = 1.0f / std::max(static_cast<float>(std::sqrt(squares)), kMuonLeastNorm);
          for (int64_t i = 0; i < n; ++i) x[i] *= inverse;
          const float* const turned = matrix.iterate();
          const float step = rate.now() * settings.adjust(matrix.parameter);
          // A factor 1 - decaying would be rounded in each step.
          for (int64_t i = 0; i < n; ++i) w[first + i] -= decaying * w[first + i] + step * turned[i];
        }
      });
}

}  // namespace

extern const CpuKernels muon_cpu = {{"muon_update", prepare_muon_update}};

}  // namespace trainctl
