// Blocks of queries by keys on a CPU: what attention, its gradient and that of a bias of its scores have in common
// (attention_cpu.cpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "engine/base/round_up.h"
#include "engine/ops/attention/attention_shape.h"
#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/cpu/scratch_cpu.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/matmul/product_cpu.h"

namespace trainctl::attention_blocks {

inline constexpr int64_t kQueries = 64, kKeys = 128;  // queries and keys of a block
inline constexpr int64_t kAttentionLanes = 16;        // queries whose values a loop keeps in registers
/// The score of a key that a query does not see. It is below every real score, and finite, so that the difference of
/// two such scores is not NaN.
inline constexpr float kUnseen = -std::numeric_limits<float>::max();

/// A block of one head's queries: rows [first, first + count), in `width` columns of the transposed matrices. Columns
/// beyond count hold numbers that nothing reads.
struct Block {
  int64_t b, g, r, first, count, width;
};

struct KeyBlock {
  int64_t first, count;
  bool is_first;
};

/// Operands of gradients: dy, the output of attention, and the logs of its rows.
struct GradRows {
  const float *dy, *y, *logs;
};

/// The size of a product c[m,n] = a[m,k] b[k,n].
struct ProductSize {
  int64_t m, n, k;
};

/// The memory of one thread.
struct Buffers {
  float *queries, *slopes;  ///< [d, kQueries] and [e, kQueries]: q and dy, transposed
  float *scores, *rates;    ///< [kKeys, kQueries]: S and P; R and G
  /// [kKeys, kQueries]: factors of dropout; 1 - (S / c)^2 if S has terms besides the softcap.
  float *kept, *caps;
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
    if (a_.terms.has_bias) bias_ = call.in[a_.terms.bias_at].as<float>();
    scalars_ = call.scalars;
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
    const int64_t squares = 2 + (drops() ? 1 : 0) + (caps_apart() ? 1 : 0);
    floats_ = turned(n_.d) + turned(n_.e) + squares * kKeys * kQueries + 3 * kQueries + product_floats_;
    scratch_->reserve(floats_ * parts_);
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
    for (int64_t c = 0; c < block.width; c += 8) {
      const int64_t count = std::clamp<int64_t>(block.count - c, 0, 8);
      int64_t e = 0;
      for (; e + 8 <= features; e += 8)
        turn_square(rows + c * row_step + e, row_step, count, scale, to + e * kQueries + c);
      for (; e < features; ++e) {
        for (int64_t i = 0; i < 8; ++i)
          to[e * kQueries + c + i] = i < count ? scale * rows[(c + i) * row_step + e] : 0.0f;
      }
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
    const int64_t row = a_.first_row + block.first;  // index in the whole sequence of the row in column 0
    for (int64_t j = 0; j < keys.count; ++j) {
      const int64_t key = a_.first_key + keys.first + j;
      float* const scores = buffers.scores + j * kQueries;
      if (a_.softcap > 0) {
        for (int64_t c = 0; c < block.width; ++c) scores[c] = a_.softcap * cpu::tanh(scores[c] / a_.softcap);
        if (caps_apart()) note_caps(block, scores, buffers.caps + j * kQueries);
      }
      if (has_added_terms()) add_terms(block, keys.first + j, scores);
      const int64_t hidden = !sees(block.b, key) ? block.width : a_.causal ? std::min(block.width, key - row) : 0;
      if (hidden > 0) std::fill_n(scores, hidden, kUnseen);
      const int64_t beyond = a_.window > 0 ? std::max<int64_t>(0, key + a_.window - row) : block.width;
      if (beyond < block.width) std::fill_n(scores + beyond, block.width - beyond, kUnseen);
      if (documents_ != nullptr) hide_other_documents(block, key, scores);
    }
  }

  /// Loads a block for gradients: q and dy, transposed, the logs of its rows as `top`, and dy . out as `total`.
  void load_rows(const Block& block, const GradRows& grad, const Buffers& buffers) const {
    const int64_t at_q = offset_of(a_.q, block.b, block.g, block.r, block.first);
    const int64_t at_y = offset_of(a_.out, block.b, block.g, block.r, block.first);
    turn(q_ + at_q, a_.q.row, n_.d, block, a_.scale, buffers.queries);
    turn(grad.dy + at_y, a_.out.row, n_.e, block, 1.0f, buffers.slopes);
    std::fill_n(buffers.total, block.width, 0.0f);
    std::fill_n(buffers.top, block.width, 0.0f);
    const float* const logs = grad.logs + ((block.b * n_.g + block.g) * n_.r + block.r) * n_.t + block.first;
    std::copy_n(logs, block.count, buffers.top);
    for (int64_t c = 0; c < block.count; ++c) {
      const float *dy = grad.dy + at_y + c * a_.out.row, *y = grad.y + at_y + c * a_.out.row;
      buffers.total[c] = static_cast<float>(cpu::sum(n_.e, [=](int64_t e) { return double{dy[e]} * y[e]; }));
    }
  }

  bool drops() const { return a_.terms.dropout.is_on(); }
  bool has_added_terms() const { return a_.terms.alibi || a_.terms.has_bias; }
  bool caps_apart() const { return a_.softcap > 0 && has_added_terms(); }

  /// matrix *= the factors of dropout, after they are drawn.
  void drop(const Block& block, const KeyBlock& keys, const Buffers& buffers, float* matrix) const {
    const ScoreTerms& terms = a_.terms;
    uint64_t first_block[kQueries];
    for (int64_t c = 0; c < block.width; ++c)
      first_block[c] = terms.block_of(block.b, block.g * n_.r + block.r, block.first + std::min(c, block.count - 1));
    const int64_t begin = terms.first_key + keys.first, end = begin + keys.count;
    uint32_t words[4][kQueries];
    for (int64_t at = begin / 4; at <= (end - 1) / 4; ++at) {
      for (int64_t c = 0; c < block.width; ++c) {
        const Philox4 bits = philox(terms.dropout.key, first_block[c] + static_cast<uint64_t>(at), scalars_->step);
        for (int i = 0; i < 4; ++i) words[i][c] = bits.v[i];
      }
      for (int64_t key = std::max(begin, 4 * at); key < std::min(end, 4 * at + 4); ++key) {
        float* const to = buffers.kept + (key - begin) * kQueries;
        for (int64_t c = 0; c < block.width; ++c) to[c] = terms.dropout.factor(words[key % 4][c]);
      }
    }
    multiply_kept(block, keys, buffers, matrix);
  }
  static void multiply_kept(const Block& block, const KeyBlock& keys, const Buffers& buffers, float* matrix) {
    multiply_by(block, keys, buffers.kept, matrix);
  }
  static void multiply_by(const Block& block, const KeyBlock& keys, const float* factors, float* matrix) {
    for (int64_t j = 0; j < keys.count; ++j)
      for (int64_t c = 0; c < block.width; ++c) matrix[j * kQueries + c] *= factors[j * kQueries + c];
  }

  const AttentionSize n_;
  const AttentionCall a_;

 private:
  /// Transposes eight features of eight rows. Rows from `count` on become zeros. Each round interleaves the halves.
  static void turn_square(const float* rows, int64_t row_step, int64_t count, float scale, float* to) {
    typedef float Eight __attribute__((vector_size(32)));
    Eight v[8] = {};
    for (int64_t i = 0; i < count; ++i) std::memcpy(&v[i], rows + i * row_step, sizeof(Eight));
#pragma GCC unroll 3
    for (int round = 0; round < 3; ++round) {
      Eight next[8];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        next[2 * i] = __builtin_shufflevector(v[i], v[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
        next[2 * i + 1] = __builtin_shufflevector(v[i], v[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
      }
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) v[i] = next[i];
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const Eight scaled = scale * v[i];
      std::memcpy(to + i * kQueries, &scaled, sizeof(Eight));
    }
  }

  void note_caps(const Block& block, const float* scores, float* caps) const {
    for (int64_t c = 0; c < block.width; ++c) {
      const float capped = scores[c] / a_.softcap;
      caps[c] = 1.0f - capped * capped;
    }
  }

  /// Adds the bias and ALiBi to the scores of the block for key `key` of this rank. Scores not above kUnseen become
  /// kUnseen.
  void add_terms(const Block& block, int64_t key, float* scores) const {
    const ScoreTerms& terms = a_.terms;
    const int64_t head = block.g * n_.r + block.r;
    if (terms.alibi) {
      const float slope = terms.slope_of(head);
      const int64_t distance = terms.first_row + block.first - terms.first_key - key;
      for (int64_t c = 0; c < block.width; ++c) scores[c] -= slope * static_cast<float>(std::abs(distance + c));
    }
    if (bias_ == nullptr) return;
    for (int64_t c = 0; c < block.count; ++c)
      scores[c] = cpu::at_least(scores[c] + bias_[terms.bias_of(block.b, head, block.first + c) + key], kUnseen);
  }

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
  /// The number of floats that a block of queries with `features` features takes when it is transposed.
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
    if (drops()) all.kept = take(square);
    if (caps_apart()) all.caps = take(square);
    all.top = take(kQueries), all.total = take(kQueries), all.factor = take(kQueries);
    all.product = at;
    return all;
  }

  const cpu::Tiles& tiles_;
  std::shared_ptr<cpu::Scratch> scratch_;
  const int32_t *mask_ids_ = nullptr, *documents_ = nullptr;
  const float *mask_floats_ = nullptr, *bias_ = nullptr;
  int64_t tasks_ = 0, product_floats_ = 0, floats_ = 0;
  int parts_ = 1;

 protected:
  const float *q_, *k_, *v_;
  const StepScalars* scalars_ = nullptr;
};

}  // namespace trainctl::attention_blocks
