// A block of queries meets the keys block by block; scores are transposed, [keys, queries], so that the softmax of a
// block is vectors of queries and every product reads its matrices along their rows:
//   S = K Q^T    P = e^(S - log)    out += P^T V
//   backward: S and P again, R = V dy^T, G = scale * P * (R - sum dy * out); dv += P dy, dk += G q, dq += G^T k
// With a softcap c, S is c * tanh(K Q^T / c), and G has the factor 1 - (S / c)^2.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "engine/ops/attention/attention_shape.h"
#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/cpu/scratch_cpu.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/matmul/product_cpu.h"
#include "engine/ops/row_order.h"

namespace trainctl {

CpuKernel prepare_attention_sinks_grad(const KernelCall& call);  // attention_sinks_cpu.cpp

namespace {

constexpr int64_t kQueries = 64, kKeys = 128;  // of a block
constexpr int64_t kAttentionLanes = 16;        // of queries: what a loop keeps in registers
constexpr int64_t kLeastMergedRows = 64;       // that are worth waking a thread for
/// The score of a key that a query does not see. Below every score, and finite: a difference of two is not NaN.
constexpr float kUnseen = -std::numeric_limits<float>::max();

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/// A block of one head's queries: rows [first, first + count), in `width` columns of the transposed matrices. Columns
/// beyond count hold numbers that nothing reads.
struct Block {
  int64_t b, g, r, first, count, width;
};

struct KeyBlock {
  int64_t first, count;
  bool is_first;
};

/// The size of a product c[m,n] = a[m,k] b[k,n].
struct ProductSize {
  int64_t m, n, k;
};

/// The memory of one thread.
struct Buffers {
  float *queries, *slopes;      ///< [d, kQueries] and [e, kQueries]: q and dy, transposed
  float *scores, *rates;        ///< [kKeys, kQueries]: S and P; R and G
  float *top, *total, *factor;  ///< [kQueries]
  float* product;               ///< scratch of the tiles
};

class AttentionKernel {
 public:
  AttentionKernel(const AttentionCall& shape, const KernelCall& call)
      : n_(shape.size),
        a_(shape),
        tiles_(cpu::tiles_for_blocks()),
        scratch_(cpu::scratch_of_this_thread()),
        q_(call.in[shape.q_at].as<float>()),
        k_(call.in[shape.k_at].as<float>()),
        v_(call.in[shape.v_at].as<float>()) {
    if (!a_.masked) return;
    const TensorArg& mask = call.in[a_.mask_at];
    check(!is_half(mask.dtype), "the executor has widened 16-bit floats");
    mask_ids_ = mask.dtype == DType::i32 ? mask.as<int32_t>() : nullptr;
    mask_floats_ = mask.dtype == DType::f32 ? mask.as<float>() : nullptr;
    if (a_.documents) documents_ = std::exchange(mask_ids_, nullptr);
  }

 protected:
  void split(int64_t tasks, int threads) {
    const double scores = static_cast<double>(n_.b * n_.heads() * n_.t) * static_cast<double>(n_.s);
    const auto worth = static_cast<int64_t>(scores * static_cast<double>(n_.d + n_.e) / (1 << 20)) + 1;
    tasks_ = tasks;
    parts_ = static_cast<int>(std::max<int64_t>(1, std::min({int64_t{threads}, worth, tasks})));
    int64_t floats = 0;
    for (const bool transposed : {false, true}) {
      const int64_t features = std::max(n_.d, n_.e);
      cpu::Product p{.m = kKeys, .n = std::max(features, kQueries), .k = std::max(features, kKeys)};
      p.transpose_a = transposed;
      floats = std::max(floats, tiles_.scratch_floats(p));
    }
    product_floats_ = round_up(floats, kAttentionLanes);
    floats_ = turned(n_.d) + turned(n_.e) + 2 * kKeys * kQueries + 3 * kQueries + product_floats_;
    scratch_->reserve(floats_ * parts_);
    cpu::start_workers(parts_);
  }

  /// Calls f(task, buffers) for each task; each thread takes consecutive ones.
  template <class F>
  void for_each_task(const F& f) const {
    cpu::run_parts(parts_, [&](int part) {
      const Buffers buffers = buffers_of(part);
      for (int64_t task = tasks_ * part / parts_; task < tasks_ * (part + 1) / parts_; ++task) f(task, buffers);
    });
  }

  Block block(int64_t b, int64_t head, int64_t first) const {
    const int64_t count = std::min(kQueries, n_.t - first);
    return {b, head / n_.r, head % n_.r, first, count, round_up(count, kAttentionLanes)};
  }

  /// Calls f(keys) for the blocks of keys that some query of the block sees. The first call has is_first. False: there
  /// was no call.
  template <class F>
  bool for_each_keys(const Block& block, const F& f) const {
    const int64_t end = a_.keys_of(block.first + block.count), begin = first_key(block);
    for (int64_t first = begin; first < end; first += kKeys)
      f(KeyBlock{first, std::min(kKeys, end - first), first == begin});
    return begin < end;
  }

  /// to[features, width] = scale * rows^T, with zeros in the columns beyond the block.
  static void turn(const float* rows, int64_t row_step, int64_t features, const Block& block, float scale, float* to) {
    for (int64_t c = 0; c < block.count; ++c) {
      for (int64_t e = 0; e < features; ++e) to[e * kQueries + c] = scale * rows[c * row_step + e];
    }
    for (int64_t c = block.count; c < block.width; ++c) {
      for (int64_t e = 0; e < features; ++e) to[e * kQueries + c] = 0;
    }
  }

  /// c[m,n] (+)= a[m,k] b[k,n]; transposed: a[k,m]
  void multiply(const float* a, int64_t a_row, bool transposed, const float* b, int64_t b_row, float* c, int64_t c_row,
                ProductSize size, bool add, const Buffers& buffers) const {
    cpu::Product p{.m = size.m, .n = size.n, .k = size.k, .a = a, .b = b, .c = c, .transpose_a = transposed};
    p.accumulate = add;
    p.a_row = a_row, p.b_row = b_row, p.c_row = c_row;
    tiles_.run(p, buffers.product);
  }

  /// scores[key, query] = k . (scale * q) with the softcap, or kUnseen.
  void score(const Block& block, const KeyBlock& keys, const Buffers& buffers) const {
    multiply(k_ + offset_of(a_.k, block.b, block.g, 0, keys.first), a_.k.row, false, buffers.queries, kQueries,
             buffers.scores, kQueries, {keys.count, block.width, n_.d}, false, buffers);
    const int64_t row = a_.first_row + block.first;  // of the whole, in column 0
    for (int64_t j = 0; j < keys.count; ++j) {
      const int64_t key = a_.first_key + keys.first + j;
      float* const scores = buffers.scores + j * kQueries;
      if (a_.softcap > 0) {
        for (int64_t c = 0; c < block.width; ++c) scores[c] = a_.softcap * cpu::tanh(scores[c] / a_.softcap);
      }
      const int64_t hidden = !sees(block.b, key) ? block.width : a_.causal ? std::min(block.width, key - row) : 0;
      if (hidden > 0) std::fill_n(scores, hidden, kUnseen);
      const int64_t beyond = a_.window > 0 ? std::max<int64_t>(0, key + a_.window - row) : block.width;
      if (beyond < block.width) std::fill_n(scores + beyond, block.width - beyond, kUnseen);
      if (documents_ != nullptr) hide_other_documents(block, key, scores);
    }
  }

  const AttentionSize n_;
  const AttentionCall a_;

 private:
  int64_t first_key(const Block& block) const {
    const int64_t by_window = a_.first_key_of(block.first);
    if (documents_ == nullptr) return by_window;
    const int32_t* const first = documents_ + block.b * a_.mask_rows + a_.first_row + block.first;
    return std::max<int64_t>(by_window, *std::min_element(first, first + block.count) - a_.first_key);
  }

  void hide_other_documents(const Block& block, int64_t key, float* scores) const {
    const int32_t *all = documents_ + block.b * a_.mask_rows, *rows = all + a_.first_row + block.first;
    for (int64_t c = 0; c < block.count; ++c)
      if (rows[c] != all[key] || key < rows[c]) scores[c] = kUnseen;
  }
  /// Floats of `features` transposed rows.
  static int64_t turned(int64_t features) { return round_up(features, kAttentionLanes) * kQueries; }

  bool sees(int64_t b, int64_t key) const {
    if (mask_ids_ != nullptr) return mask_ids_[b * a_.mask_rows + key] != 0;
    return mask_floats_ == nullptr || mask_floats_[b * a_.mask_rows + key] != 0.0f;
  }

  Buffers buffers_of(int part) const {
    const int64_t square = kKeys * kQueries;
    float* at = scratch_->data() + part * floats_;
    const auto take = [&](int64_t floats) { return std::exchange(at, at + floats); };
    Buffers all{};
    all.queries = take(turned(n_.d)), all.slopes = take(turned(n_.e));
    all.scores = take(square), all.rates = take(square);
    all.top = take(kQueries), all.total = take(kQueries), all.factor = take(kQueries);
    all.product = at;
    return all;
  }

  const cpu::Tiles& tiles_;
  std::shared_ptr<cpu::Scratch> scratch_;
  const int32_t *mask_ids_ = nullptr, *documents_ = nullptr;
  const float* mask_floats_ = nullptr;
  int64_t tasks_ = 0, product_floats_ = 0, floats_ = 0;
  int parts_ = 1;

 protected:
  const float *q_, *k_, *v_;
};

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
      for (int64_t c = 0; c < block.width; c += kAttentionLanes) exponentials(keys.count, c, buffers);
      if (!keys.is_first) scale_rows(out, block, buffers.factor);
      multiply(buffers.scores, kQueries, true, v_ + offset_of(a_.v, block.b, block.g, 0, keys.first), a_.v.row, out,
               a_.out.row, {block.count, n_.e, keys.count}, !keys.is_first, buffers);
    });
    float* const logs = logs_ + ((block.b * n_.g + block.g) * n_.r + block.r) * n_.t + block.first;
    for (int64_t c = 0; c < block.count; ++c) {
      const float total = buffers.total[c];
      const bool sees = total > 0 || std::isnan(total);
      logs[c] = sees ? buffers.top[c] + std::log(total) : a_.part ? kNoKeys : 0.0f;
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

  /// Turns the scores of kAttentionLanes queries into e^(score - top) with the top so far; `factor` rescales earlier
  /// sums to that top.
  static void exponentials(int64_t count, int64_t column, const Buffers& buffers) {
    float top[kAttentionLanes], sum[kAttentionLanes] = {};
    float* const before = buffers.top + column;
    float* const scores = buffers.scores + column;
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
      const float factor = cpu::exp(before[l] - top[l]);
      buffers.total[column + l] = buffers.total[column + l] * factor + sum[l];
      buffers.factor[column + l] = factor;
      before[l] = top[l];
    }
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

/// A task is a kv head of one sample: it alone writes its dk and dv, always in the same order.
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
    turn(q_ + at_q, a_.q.row, n_.d, block, a_.scale, buffers.queries);
    turn(dy_ + at_y, a_.out.row, n_.e, block, 1.0f, buffers.slopes);
    std::fill_n(buffers.total, block.width, 0.0f);
    std::fill_n(buffers.top, block.width, 0.0f);
    std::copy_n(logs_ + ((block.b * n_.g + block.g) * n_.r + block.r) * n_.t + block.first, block.count, buffers.top);
    for (int64_t c = 0; c < block.count; ++c) {
      const float *dy = dy_ + at_y + c * a_.out.row, *y = y_ + at_y + c * a_.out.row;
      buffers.total[c] = static_cast<float>(cpu::sum(n_.e, [=](int64_t e) { return double{dy[e]} * y[e]; }));
    }
    const bool any = for_each_keys(block, [&](const KeyBlock& keys) {
      const int64_t at_k = offset_of(a_.k, block.b, block.g, 0, keys.first);
      const int64_t at_v = offset_of(a_.v, block.b, block.g, 0, keys.first);
      score(block, keys, buffers);
      multiply(v_ + at_v, a_.v.row, false, buffers.slopes, kQueries, buffers.rates, kQueries,
               {keys.count, block.width, n_.e}, false, buffers);
      for (int64_t c = 0; c < block.width; c += kAttentionLanes) slopes(keys.count, c, buffers);
      multiply(buffers.scores, kQueries, false, dy_ + at_y, a_.out.row, dv_ + at_v, a_.v.row,
               {keys.count, n_.e, block.count}, true, buffers);
      multiply(buffers.rates, kQueries, false, q_ + at_q, a_.q.row, dk_ + at_k, a_.k.row,
               {keys.count, n_.d, block.count}, true, buffers);
      multiply(buffers.rates, kQueries, true, k_ + at_k, a_.k.row, dq_ + at_q, a_.q.row,
               {block.count, n_.d, keys.count}, !keys.is_first, buffers);
    });
    for (int64_t c = 0; c < block.count && !any; ++c) std::fill_n(dq_ + at_q + c * a_.q.row, n_.d, 0.0f);
  }

  /// For kAttentionLanes queries: scores become P, rates become G. An unseen score would have the smallest exponential,
  /// whose products are subnormal and therefore slow, so that of e^0 takes its place.
  void slopes(int64_t count, int64_t column, const Buffers& buffers) const {
    const float per_cap = a_.softcap > 0 ? 1.0f / a_.softcap : 0.0f;
    float log[kAttentionLanes], mean[kAttentionLanes];
    std::copy_n(buffers.top + column, kAttentionLanes, log);
    std::copy_n(buffers.total + column, kAttentionLanes, mean);
    for (int64_t j = 0; j < count; ++j) {
      float *p = buffers.scores + j * kQueries + column, *rate = buffers.rates + j * kQueries + column;
      for (int l = 0; l < kAttentionLanes; ++l) {
        const bool unseen = p[l] == kUnseen;
        const float score = unseen ? log[l] : p[l], capped = score * per_cap;
        const float e = cpu::exp(score - log[l]);
        const float slope = a_.scale * e * (rate[l] - mean[l]) * (1.0f - capped * capped);
        p[l] = unseen ? 0.0f : e;
        rate[l] = unseen ? 0.0f : slope;
      }
    }
  }

  const float *dy_, *y_, *logs_;
  float *dq_, *dk_, *dv_;
};

/// Rows of two blocks of keys, each with the log of its sum of exponentials, become those of both.
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

/// y[b, position] = x[b, index] of rows that are stored in an order of ranks, or the other way.
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
                                         {"attention_merge", prepare_attention_merge},
                                         {"reorder_rows", prepare_reorder_rows}};

}  // namespace trainctl
