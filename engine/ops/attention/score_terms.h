// Terms of attention's scores other than q k, dropout of its weights. For row i and key j of query head h of sample b
//
//   score    scale * q . k, with the softcap; then + slope(h) * -|i - j| (attr alibi) and + bias[b, h, i, j]
//   weight   softmax of the scores; with attr dropout: p, weight / (1 - p) where it is kept, else 0
//
// The bias is an input behind the mask and before the sinks. Attr score_bias has its dims, which are whole for rows and
// keys; a dim of size 1 counts for all samples, heads or rows:
//
//   rk [rows, keys]    hrk [heads, rows, keys]    brk [samples, rows, keys]    bhrk [samples, heads, rows, keys]
//
// A score of -inf, or of the lowest float, hides the key. Whether a weight is kept depends only on (seed, attr
// dropout_key, step, its place in the whole batch): sample, head, row, key. Attr batch: ops/batch_index.h, for q.
//
// Slopes are those of Press et al., "Train Short, Test Long" (2022): 2^(-8 (h + 1) / n) for n heads, a power of two. Of
// other numbers of heads, the first ones have the slopes of the next smaller power n, and the rest have every second
// slope of 2n heads.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "engine/graph/rule.h"
#include "engine/ops/attention/sinks.h"
#include "engine/ops/batch_index.h"
#include "engine/ops/kernel.h"
#include "engine/ops/kernel_def.h"

namespace trainctl {

struct OpDef;
extern const OpDef attention_score_bias_grad_op;

inline constexpr const char* kAlibi = "alibi";
inline constexpr const char* kScoreBias = "score_bias";
inline constexpr const char* kScoreDropout = "dropout";
inline constexpr const char* kScoreDropoutKey = "dropout_key";

/// Attr of the gradient of a bias: set if the bias is not a parameter. The gradient then has its type, otherwise f32.
inline constexpr const char* kBiasIsActivation = "bias_is_activation";

/// Inputs of attention behind q, k, v and the mask: the bias of scores and the sinks.
inline size_t extra_inputs(const Attrs& attrs) {
  return (attrs.has(kScoreBias) ? size_t{1} : size_t{0}) + (attrs.flag(kSinks) ? size_t{1} : size_t{0});
}
/// The inputs before those.
inline Infos without_extras(Infos in, const Attrs& attrs) {
  return in.first(in.size() - std::min(in.size(), extra_inputs(attrs)));
}

/// Scores depend on more than q, k and the mask, or weights are dropped.
inline bool has_score_terms(const Attrs& attrs) {
  return attrs.flag(kAlibi) || attrs.has(kScoreBias) || attrs.number(kScoreDropout, 0) > 0;
}

TRAINCTL_HOST_DEVICE inline float alibi_slope(int64_t head, int64_t heads) {
  int64_t power = 1;
  while (2 * power <= heads) power *= 2;
  const int64_t eighths = head < power ? 2 * (head + 1) : 2 * (head - power) + 1;
  return exp2f(-4.0f * static_cast<float>(eighths) / static_cast<float>(power));
}

/// The random numbers of a call: those of four consecutive keys have one Philox block.
struct ScoreDropout {
  float p = 0;
  uint64_t key = 0;
  uint32_t threshold = 0;  ///< a word below it drops the weight: word / 2^32 < p, in 24 bits
  float scale = 1;         ///< factor of kept weights
  BatchIndex rows;         ///< index of a row in [samples, rows] of the micro-batch -> in the whole batch
  int64_t first_sample = 0, samples_rows = 0, blocks = 0;  ///< blocks of a row: keys / 4, rounded up

  TRAINCTL_HOST_DEVICE bool is_on() const { return p > 0; }
  /// The block of keys 4 * i to 4 * i + 3 is that of index 0 plus i. `row` and `head`: in the whole.
  TRAINCTL_HOST_DEVICE uint64_t first_block(int64_t sample, int64_t row, int64_t head, int64_t heads) const {
    const int64_t index = rows.of((first_sample + sample) * samples_rows + row);
    return static_cast<uint64_t>((index * heads + head) * blocks);
  }
  TRAINCTL_HOST_DEVICE float factor(uint32_t word) const { return word >= threshold ? scale : 0.0f; }
};

/// The terms of one call on this rank's part.
struct ScoreTerms {
  bool any = false;
  bool alibi = false, has_bias = false;
  int64_t first_head = 0, heads = 0;     ///< this rank's first query head, and the number of all
  int64_t first_row = 0, first_key = 0;  ///< indices of this rank's first row and key in the whole
  size_t bias_at = 0;                    ///< the input that has the bias
  int64_t batch = 0, head = 0, row = 0;  ///< elements of the bias from one index to the next; 0: it counts for all
  ScoreDropout dropout;

  /// `sample` and `head_of_call` are local; the index of the bias of the first key.
  TRAINCTL_HOST_DEVICE int64_t bias_of(int64_t sample, int64_t head_of_call, int64_t row_of_call) const {
    return sample * batch + head_of_call * head + (first_row + row_of_call) * row + first_key;
  }
  TRAINCTL_HOST_DEVICE float slope_of(int64_t head_of_call) const {
    return alibi ? alibi_slope(first_head + head_of_call, heads) : 0.0f;
  }
  TRAINCTL_HOST_DEVICE uint64_t block_of(int64_t sample, int64_t head_of_call, int64_t row_of_call) const {
    return dropout.first_block(sample, first_row + row_of_call, first_head + head_of_call, heads);
  }
};

/// Sizes of the bias's dims, 1 for those that it does not have.
struct BiasDims {
  int64_t b = 1, h = 1, r = 1, k = 1;

  /// `dims` is the attr.
  static BiasDims of(const Shape& shape, const std::string& dims) {
    BiasDims sizes;
    for (size_t i = 0; i < dims.size() && i < shape.size(); ++i)
      (dims[i] == 'b' ? sizes.b : dims[i] == 'h' ? sizes.h : dims[i] == 'r' ? sizes.r : sizes.k) = shape[i];
    return sizes;
  }
};

/// Adds the input of the bias to a rule of attention, after the other inputs. `keeps_all_heads`: heads cannot be cut.
void add_score_bias(RuleText& rule, const TensorInfo& bias, const Attrs& attrs, bool keeps_all_heads);
/// Checks the input; `sizes` are those of the op: samples, query heads, rows and keys.
void expect_score_bias(const TensorInfo& bias, const Attrs& attrs, const BiasDims& sizes);

}  // namespace trainctl
