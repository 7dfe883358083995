// A task is a kv head of one sample: it writes the new keys and values, then each of its queries attends to all keys.
#include <algorithm>
#include <cmath>

#include "engine/ops/cached_attention/cached_attention_shape.h"
#include "engine/ops/cpu/scratch_cpu.h"
#include "engine/ops/cpu/threads_cpu.h"

namespace trainctl {
namespace {

constexpr int64_t kDotLanes = 16;

/// The dot product of two vectors, summed in a fixed order that the compiler can vectorize.
float dot(const float* a, const float* b, int64_t n) {
  float lanes[kDotLanes] = {}, total = 0;
  int64_t i = 0;
  for (; i + kDotLanes <= n; i += kDotLanes)
    for (int64_t l = 0; l < kDotLanes; ++l) lanes[l] += a[i + l] * b[i + l];
  for (; i < n; ++i) total += a[i] * b[i];
  for (const float lane : lanes) total += lane;
  return total;
}

class CachedAttention {
 public:
  explicit CachedAttention(const KernelCall& call)
      : a_(cached_attention_of(call)),
        n_(a_.heads.size),
        scratch_(cpu::scratch_of_this_thread()),
        k_cache_(call.in[0].as<float>()),
        v_cache_(call.in[1].as<float>()),
        starts_(call.in[2].as<int32_t>()),
        q_(call.in[a_.heads.q_at].as<float>()),
        k_(call.in[a_.heads.k_at].as<float>()),
        v_(call.in[a_.heads.v_at].as<float>()),
        sinks_(a_.heads.has_sinks ? call.in[a_.heads.sinks_at].as<float>() : nullptr),
        out_(call.out[0].as<float>()) {
    const double work =
        static_cast<double>(n_.b * n_.heads() * n_.t) * static_cast<double>(a_.positions * (n_.d + n_.e));
    const auto worth = static_cast<int64_t>(work / (1 << 18)) + 1;
    parts_ = static_cast<int>(std::max<int64_t>(1, std::min({int64_t{call.threads}, worth, n_.b * n_.g})));
    scratch_->reserve(a_.positions * parts_);
  }

  void operator()() const {
    cpu::run_parts(parts_, [this](int part) {
      const int64_t tasks = n_.b * n_.g;
      for (int64_t task = tasks * part / parts_; task < tasks * (part + 1) / parts_; ++task)
        run(task / n_.g, task % n_.g, scratch_->data() + part * a_.positions);
    });
  }

 private:
  void run(int64_t b, int64_t g, float* scores) const {
    for (int64_t i = 0; i < n_.t; ++i) {
      const int64_t position = starts_[b] + i;
      if (position >= a_.positions) break;
      std::copy_n(k_ + offset_of(a_.heads.k, b, g, 0, i), n_.d, k_cache_ + offset_of(a_.k_cache, b, g, 0, position));
      std::copy_n(v_ + offset_of(a_.heads.v, b, g, 0, i), n_.e, v_cache_ + offset_of(a_.v_cache, b, g, 0, position));
    }
    for (int64_t r = 0; r < n_.r; ++r)
      for (int64_t i = 0; i < n_.t; ++i) attend(b, g, r, i, scores);
  }

  /// Computes the output of row i of query head r of kv head g in sample b. `scores`: memory for one score per
  /// position.
  void attend(int64_t b, int64_t g, int64_t r, int64_t i, float* scores) const {
    float* const out = out_ + offset_of(a_.heads.out, b, g, r, i);
    std::fill_n(out, n_.e, 0.0f);
    const int64_t position = starts_[b] + i;
    if (position >= a_.positions) return;
    const int64_t first = a_.heads.window > 0 ? std::max<int64_t>(0, position - a_.heads.window + 1) : 0;
    const float* const q = q_ + offset_of(a_.heads.q, b, g, r, i);
    const float cap = a_.heads.softcap, slope = a_.heads.terms.slope_of(g * n_.r + r);
    const float sink = sinks_ == nullptr ? -INFINITY : sinks_[g * n_.r + r];
    float top = sink, total = 0;
    for (int64_t j = first; j <= position; ++j) {
      float score = a_.heads.scale * dot(q, k_cache_ + offset_of(a_.k_cache, b, g, 0, j), n_.d);
      if (cap > 0) score = cap * std::tanh(score / cap);
      score -= slope * static_cast<float>(position - j);
      scores[j] = score;
      top = std::max(top, score);
    }
    for (int64_t j = first; j <= position; ++j) {
      const float p = std::exp(scores[j] - top), *v = v_cache_ + offset_of(a_.v_cache, b, g, 0, j);
      total += p;
      for (int64_t e = 0; e < n_.e; ++e) out[e] += p * v[e];
    }
    if (sinks_ != nullptr) total += std::exp(sink - top);
    for (int64_t e = 0; e < n_.e; ++e) out[e] /= total;
  }

  const CachedAttentionCall a_;
  const AttentionSize n_;
  std::shared_ptr<cpu::Scratch> scratch_;
  float *k_cache_, *v_cache_;
  const int32_t* starts_;
  const float *q_, *k_, *v_, *sinks_;
  float* out_;
  int parts_ = 1;
};

CpuKernel prepare_cached_attention(const KernelCall& call) { return CachedAttention(call); }

}  // namespace

extern const CpuKernels cached_attention_cpu = {{"cached_attention", prepare_cached_attention}};

}  // namespace trainctl
