// A block of queries attends to keys block by block; scores are transposed, [keys, queries], so that the softmax of a
// block is vectors of queries and every product reads its matrices along their rows:
//   S = K Q^T    P = e^(S - log)    out += P^T V
//   backward: S and P again, R = V dy^T, G = scale * P * (R - sum dy * out); dv += P dy, dk += G q, dq += G^T k
// With a softcap c, S is c * tanh(K Q^T / c), and G has the factor 1 - (S / c)^2. With dropout P of out and of dv, and
// R have the factors of score_terms.h.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/ops/attention/attention_blocks_cpu.h"
#include "engine/ops/row_order.h"

namespace trainctl {

CpuKernel prepare_attention_sinks_grad(const KernelCall& call);       // attention_sinks_cpu.cpp
CpuKernel prepare_attention_score_bias_grad(const KernelCall& call);  // attention_score_bias_cpu.cpp

namespace attention_blocks {

/// Turns the scores of kAttentionLanes queries into e^(score - top), where top is the largest score so far. `factor`
/// rescales the sums of earlier blocks to the new top.
TRAINCTL_WIDE_LOOPS void exponentials_of_keys(int64_t count, float* scores, float* before, float* total,
                                              float* factor) {
  float top[kAttentionLanes], sum[kAttentionLanes] = {};
  std::copy_n(before, kAttentionLanes, top);
  for (int64_t j = 0; j < count; ++j) {
    const float* row = scores + j * kQueries;
    for (int l = 0; l < kAttentionLanes; ++l) top[l] = cpu::at_least(row[l], top[l]);
  }
  for (int64_t j = 0; j < count; ++j) {
    float* row = scores + j * kQueries;
    for (int l = 0; l < kAttentionLanes; ++l) {
      const float p = cpu::exp(row[l] - top[l]);
      row[l] = row[l] == kUnseen ? 0.0f : p;
      sum[l] += row[l];
    }
  }
  for (int l = 0; l < kAttentionLanes; ++l) {
    factor[l] = cpu::exp(before[l] - top[l]);
    total[l] = total[l] * factor[l] + sum[l];
    before[l] = top[l];
  }
}

struct SlopeTerms {
  float scale;
  float per_cap;  ///< 1 / softcap; 0: no softcap, or its slopes are separate
};

/// For kAttentionLanes queries: scores become P, and rates become G (see the top of the file). The exponential of a
/// masked score would make products subnormal and therefore slow, so e^0 is computed in its place.
TRAINCTL_WIDE_LOOPS void slopes_of_keys(int64_t count, SlopeTerms terms, const float* logs, const float* means,
                                        float* scores, float* rates) {
  float log[kAttentionLanes], mean[kAttentionLanes];
  std::copy_n(logs, kAttentionLanes, log);
  std::copy_n(means, kAttentionLanes, mean);
  for (int64_t j = 0; j < count; ++j) {
    float *p = scores + j * kQueries, *rate = rates + j * kQueries;
    for (int l = 0; l < kAttentionLanes; ++l) {
      const bool unseen = p[l] == kUnseen;
      const float score = unseen ? log[l] : p[l], capped = score * terms.per_cap;
      const float e = cpu::exp(score - log[l]);
      const float slope = terms.scale * e * (rate[l] - mean[l]) * (1.0f - capped * capped);
      p[l] = unseen ? 0.0f : e;
      rate[l] = unseen ? 0.0f : slope;
    }
  }
}

}  // namespace attention_blocks

namespace {

using namespace attention_blocks;

constexpr int64_t kLeastMergedRows = 64;  ///< below this, waking a thread takes longer than the work

class AttentionForward : public AttentionKernel {
 public:
  explicit AttentionForward(const KernelCall& call)
      : AttentionKernel(attention_of(call), call),
        sinks_(a_.has_sinks ? call.in[a_.sinks_at].as<float>() : nullptr),
        out_(call.out[0].as<float>()),
        logs_(call.out[1].as<float>()) {
    blocks_ = (n_.t + kQueries - 1) / kQueries;
    split(n_.b * n_.heads() * blocks_, call.threads);
  }

  void operator()() const {
    for_each_task([this](int64_t task, const Buffers& buffers) {
      const int64_t head = task / blocks_;
      run(block(head / n_.heads(), head % n_.heads(), task % blocks_ * kQueries), buffers);
    });
  }

 private:
  void run(const Block& block, const Buffers& buffers) const {
    float* const out = out_ + offset_of(a_.out, block.b, block.g, block.r, block.first);
    turn(q_ + offset_of(a_.q, block.b, block.g, block.r, block.first), a_.q.row, n_.d, block, a_.scale,
         buffers.queries);
    std::fill_n(buffers.top, block.width, kUnseen);
    std::fill_n(buffers.total, block.width, 0.0f);
    const bool any = for_each_keys(block, [&](const KeyBlock& keys) {
      score(block, keys, buffers);
      for (int64_t c = 0; c < block.width; c += kAttentionLanes)
        exponentials_of_keys(keys.count, buffers.scores + c, buffers.top + c, buffers.total + c, buffers.factor + c);
      if (drops()) drop(block, keys, buffers, buffers.scores);
      if (!keys.is_first) scale_rows(out, block, buffers.factor);
      multiply(buffers.scores, kQueries, true, v_ + offset_of(a_.v, block.b, block.g, 0, keys.first), a_.v.row, out,
               a_.out.row, {block.count, n_.e, keys.count}, !keys.is_first, buffers);
    });
    float* const logs = logs_ + ((block.b * n_.g + block.g) * n_.r + block.r) * n_.t + block.first;
    for (int64_t c = 0; c < block.count; ++c) {
      const float total = buffers.total[c];
      const bool sees = total > 0 || std::isnan(total);
      logs[c] = sees ? buffers.top[c] + std::log(total) : a_.is_partial ? kNoKeys : 0.0f;
      buffers.factor[c] = sees ? 1.0f / total : 0.0f;
      if (sinks_ != nullptr) add_sink(sinks_[block.g * n_.r + block.r], sees, c, buffers, logs[c]);
      if (!any) std::fill_n(out + c * a_.out.row, n_.e, 0.0f);
    }
    if (any) scale_rows(out, block, buffers.factor);
  }

  /// Adds the term of the sink to the sum of a row.
  static void add_sink(float sink, bool sees, int64_t row, const Buffers& buffers, float& log) {
    if (!sees) {
      log = sink;
      return;
    }
    const float top = std::max(buffers.top[row], sink), factor = std::exp(buffers.top[row] - top);
    const float total = buffers.total[row] * factor + std::exp(sink - top);
    log = top + std::log(total);
    buffers.factor[row] = factor / total;
  }

  void scale_rows(float* out, const Block& block, const float* factor) const {
    for (int64_t c = 0; c < block.count; ++c) {
      float* row = out + c * a_.out.row;
      for (int64_t e = 0; e < n_.e; ++e) row[e] *= factor[c];
    }
  }

  const float* const sinks_;
  float *out_, *logs_;
  int64_t blocks_ = 0;
};

/// The backward pass. A task is one kv head of one sample. No other task writes the dk and dv of that head, and they
/// are always summed in the same order.
class AttentionBackward : public AttentionKernel {
 public:
  explicit AttentionBackward(const KernelCall& call)
      : AttentionKernel(attention_of_grad(call), call),
        dy_(call.in[0].as<float>()),
        y_(call.in[call.in.size() - 2].as<float>()),
        logs_(call.in.back().as<float>()),
        dq_(call.out[0].as<float>()),
        dk_(call.out[a_.packed ? 0 : 1].as<float>()),
        dv_(call.out[a_.packed ? 0 : 2].as<float>()) {
    split(n_.b * n_.g, call.threads);
  }

  void operator()() const {
    for_each_task([this](int64_t task, const Buffers& buffers) {
      const int64_t b = task / n_.g, g = task % n_.g;
      for (int64_t j = 0; j < n_.s; ++j) {
        std::fill_n(dk_ + offset_of(a_.k, b, g, 0, j), n_.d, 0.0f);
        std::fill_n(dv_ + offset_of(a_.v, b, g, 0, j), n_.e, 0.0f);
      }
      for (int64_t r = 0; r < n_.r; ++r) {
        for (int64_t first = 0; first < n_.t; first += kQueries) run(block(b, g * n_.r + r, first), buffers);
      }
    });
  }

 private:
  void run(const Block& block, const Buffers& buffers) const {
    const int64_t at_q = offset_of(a_.q, block.b, block.g, block.r, block.first);
    const int64_t at_y = offset_of(a_.out, block.b, block.g, block.r, block.first);
    load_rows(block, {dy_, y_, logs_}, buffers);
    const bool any = for_each_keys(block, [&](const KeyBlock& keys) {
      const int64_t at_k = offset_of(a_.k, block.b, block.g, 0, keys.first);
      const int64_t at_v = offset_of(a_.v, block.b, block.g, 0, keys.first);
      score(block, keys, buffers);
      multiply(v_ + at_v, a_.v.row, false, buffers.slopes, kQueries, buffers.rates, kQueries,
               {keys.count, block.width, n_.e}, false, buffers);
      if (drops()) drop(block, keys, buffers, buffers.rates);
      const SlopeTerms terms{a_.scale, a_.softcap > 0 && !caps_apart() ? 1.0f / a_.softcap : 0.0f};
      for (int64_t c = 0; c < block.width; c += kAttentionLanes)
        slopes_of_keys(keys.count, terms, buffers.top + c, buffers.total + c, buffers.scores + c, buffers.rates + c);
      if (drops()) multiply_kept(block, keys, buffers, buffers.scores);
      if (caps_apart()) multiply_by(block, keys, buffers.caps, buffers.rates);
      multiply(buffers.scores, kQueries, false, dy_ + at_y, a_.out.row, dv_ + at_v, a_.v.row,
               {keys.count, n_.e, block.count}, true, buffers);
      multiply(buffers.rates, kQueries, false, q_ + at_q, a_.q.row, dk_ + at_k, a_.k.row,
               {keys.count, n_.d, block.count}, true, buffers);
      multiply(buffers.rates, kQueries, true, k_ + at_k, a_.k.row, dq_ + at_q, a_.q.row,
               {block.count, n_.d, keys.count}, !keys.is_first, buffers);
    });
    for (int64_t c = 0; c < block.count && !any; ++c) std::fill_n(dq_ + at_q + c * a_.q.row, n_.d, 0.0f);
  }

  const float *dy_, *y_, *logs_;
  float *dq_, *dk_, *dv_;
};

/// Merges the outputs of the same rows for two blocks of keys into the output for both blocks, using the logs of the
/// sums of exponentials.
CpuKernel prepare_attention_merge(const KernelCall& call) {
  const Shape& logs_shape = call.in[1].shape;  // [b, g, r, t]
  const int64_t heads = logs_shape[1] * logs_shape[2], t = logs_shape[3], rows = logs_shape[0] * heads * t;
  const int64_t features = call.in[0].shape[2], e = features / heads;
  const float no_keys = call.attrs.flag("last") ? 0.0f : kNoKeys;
  return [=, a = call.in[0].as<float>(), log_a = call.in[1].as<float>(), b = call.in[2].as<float>(),
          log_b = call.in[3].as<float>(), out = call.out[0].as<float>(), logs = call.out[1].as<float>(),
          threads = call.threads] {
    cpu::over_range(threads, rows, kLeastMergedRows, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t head = row / t, at = (head / heads * t + row % t) * features + head % heads * e;
        const float top = std::max(log_a[row], log_b[row]);
        const bool sees = !(top <= kNoKeys);
        const float of_a = sees ? std::exp(log_a[row] - top) : 0.0f, of_b = sees ? std::exp(log_b[row] - top) : 0.0f;
        const float total = of_a + of_b, per_total = sees ? 1.0f / total : 0.0f;
        for (int64_t i = at; i < at + e; ++i) out[i] = (of_a * a[i] + of_b * b[i]) * per_total;
        logs[row] = sees ? top + std::log(total) : no_keys;
      }
    });
  };
}

/// Reorders the rows of each sample between the order by position and the order in which ranks store them
/// (row_order.h).
CpuKernel prepare_reorder_rows(const KernelCall& call) {
  const TensorArg &x = call.in[0], &y = call.out[0];
  const int64_t rows = x.shape[1], bytes = x.size() * byte_size(x.dtype) / std::max<int64_t>(1, x.shape[0] * rows);
  return [rows, bytes, samples = x.shape[0], order = RowOrder::of(call.attrs, rows), from = x.as<std::byte>(),
          to = y.as<std::byte>(), to_order = call.attrs.flag("to_order")] {
    for (int64_t row = 0; row < samples * rows; ++row) {
      const int64_t place = row / rows * rows + order.position(row % rows);
      std::memcpy(to + (to_order ? row : place) * bytes, from + (to_order ? place : row) * bytes,
                  static_cast<size_t>(bytes));
    }
  };
}

CpuKernel prepare_attention(const KernelCall& call) { return AttentionForward(call); }
CpuKernel prepare_attention_grad(const KernelCall& call) { return AttentionBackward(call); }

}  // namespace

extern const CpuKernels attention_cpu = {{"attention", prepare_attention},
                                         {"attention_grad", prepare_attention_grad},
                                         {"attention_sinks_grad", prepare_attention_sinks_grad},
                                         {"attention_score_bias_grad", prepare_attention_score_bias_grad},
                                         {"attention_merge", prepare_attention_merge},
                                         {"reorder_rows", prepare_reorder_rows}};

}  // namespace trainctl
