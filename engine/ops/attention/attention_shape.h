// Sizes of an attention call and the strides of its heads. The CPU kernels, the CUDA kernels and cuDNN read q, k and v
// in place, packed in one tensor or separate.
#pragma once

#include "engine/base/error.h"
#include "engine/ops/attention/key_exchange.h"
#include "engine/ops/attention/score_terms.h"
#include "engine/ops/attention/sinks.h"
#include "engine/ops/kernel.h"

namespace trainctl {

struct AttentionSize {
  int64_t b = 0;         ///< batch
  int64_t t = 0, s = 0;  ///< query rows, and keys
  int64_t g = 0, r = 1;  ///< kv heads, and query heads per kv head
  int64_t d = 0;         ///< features per head of queries and keys
  int64_t e = 0;         ///< features per head of values, and of the output

  int64_t heads() const { return g * r; }
};

/// The heads of one operand: the offset of the first, and the strides in elements.
struct Heads {
  int64_t first = 0, batch = 0, row = 0, group = 0, head = 0;
};

constexpr int64_t offset_of(const Heads& x, int64_t b, int64_t g, int64_t r, int64_t row) {
  return x.first + b * x.batch + g * x.group + r * x.head + row * x.row;
}

/// An attention call on this rank's shard.
struct AttentionCall {
  AttentionSize size;
  bool packed = false;
  Heads q, k, v, out;                   ///< also the heads of dq, dk, dv and dy
  size_t q_at = 0, k_at = 0, v_at = 0;  ///< the inputs that hold them
  bool masked = false;
  bool documents = false;  ///< the mask (i32) has for each row the first row of its document
  size_t mask_at = 0;      ///< [b, s], if masked
  bool has_sinks = false;
  size_t sinks_at = 0;  ///< [heads], if there are sinks
  bool causal = false;
  int64_t window = 0;  ///< a row sees this many rows, of which it is the last; 0: all
  // Positions in the whole sequence; without a mask both may be shifted (attention_of).
  int64_t first_row = 0;  ///< position of the first query row
  int64_t first_key = 0;  ///< position of the first key
  int64_t mask_rows = 0;  ///< rows of the mask, which covers the whole sequence
  /// The keys are only a part of the sequence (kPartOfKeys): a row that sees none of them gets the log-sum-exp kNoKeys,
  /// and attention_merge combines the parts.
  bool is_partial = false;
  float scale = 1;
  float softcap = 0;  ///< a score x becomes softcap * tanh(x / softcap); 0: scores are not capped
  ScoreTerms terms;

  /// True if the keys begin at position 0 (after the shift in attention_of), so that kernels need no offset for them;
  /// always false for one part of the keys.
  bool starts_at_first_key() const { return first_key == 0 && !is_partial; }
  /// Returns the end of the keys that local rows before `end` can see.
  int64_t keys_of(int64_t end) const {
    const int64_t seen = first_row + end - first_key;
    return causal && seen < size.s ? (seen > 0 ? seen : 0) : size.s;
  }
  /// Returns the first key that local rows from `begin` on can see.
  int64_t first_key_of(int64_t begin) const {
    const int64_t first = first_row + begin - window + 1 - first_key;
    return window > 0 && first > 0 ? first : 0;
  }
};

/// Builds the score terms (ALiBi, bias, dropout) of a call whose other fields are set. `bias_at`: the index of the bias
/// input, if there is one.
inline ScoreTerms terms_of(const KernelCall& call, const AttentionCall& a, size_t bias_at) {
  ScoreTerms terms;
  terms.any = has_score_terms(call.attrs);
  if (!terms.any) return terms;
  const AttentionSize& n = a.size;
  const TensorArg &q = call.in[a.q_at], &k = call.in[a.k_at];
  const bool by_groups = a.packed && call.attrs.text("packing", "heads") == "heads";
  // A cut of q keeps these units whole: `unit` is their number of features, `heads` their number of query heads. With
  // packing: qkv, heads are never cut.
  const int64_t unit = by_groups ? (n.r + 2) * n.d : a.packed ? q.shape[2] : n.d;
  const int64_t heads = by_groups ? n.r : a.packed ? n.heads() : 1;
  const bool has_place = q.offset.size() == 3 && k.offset.size() == 3;
  terms.heads = has_place ? q.global_shape[2] / unit * heads : n.heads();
  if (has_place) {
    terms.first_head = q.offset[2] / unit * heads;
    terms.first_row = q.offset[1], terms.first_key = k.offset[1];
  }
  terms.alibi = call.attrs.flag(kAlibi);
  terms.has_bias = call.attrs.has(kScoreBias);
  if (terms.has_bias) {
    terms.bias_at = bias_at;
    const BiasDims dims = BiasDims::of(call.in[bias_at].shape, call.attrs.text(kScoreBias));
    terms.row = dims.r > 1 ? dims.k : 0;
    terms.head = dims.h > 1 ? dims.r * dims.k : 0;
    terms.batch = dims.b > 1 ? dims.h * dims.r * dims.k : 0;
  }
  const double p = call.attrs.number(kScoreDropout, 0);
  if (p > 0) {
    const Shape samples = has_place ? Shape{q.global_shape[0], q.global_shape[1]} : Shape{n.b, n.t};
    ScoreDropout& drop = terms.dropout;
    drop.p = static_cast<float>(p);
    drop.key = stream_key(call.seed, static_cast<uint64_t>(call.attrs.integer(kScoreDropoutKey)));
    drop.threshold = static_cast<uint32_t>(std::ceil(drop.p * 0x1p24f)) << 8;
    drop.scale = static_cast<float>(1.0 / (1.0 - p));
    drop.rows = BatchIndex(BatchPlace::of(call.attrs), samples, call.micro_batch);
    drop.first_sample = has_place ? q.offset[0] : 0;
    drop.samples_rows = samples[1];
    drop.blocks = ((has_place ? k.global_shape[1] : n.s) + 3) / 4;
  }
  return terms;
}

/// `first`: the index of input q; `count`: the number of inputs of the forward op.
inline AttentionCall attention_of(const KernelCall& call, size_t first, size_t count) {
  AttentionCall a;
  const TensorArg& x = call.in[first];
  AttentionSize& n = a.size;
  a.has_sinks = call.attrs.flag(kSinks);
  if (a.has_sinks) a.sinks_at = first + --count;
  const size_t bias_at = call.attrs.has(kScoreBias) ? first + --count : 0;
  a.packed = count <= 2;
  n.b = x.shape[0], n.t = n.s = x.shape[1], n.d = n.e = call.attrs.integer("head_dim");
  const int64_t width = x.shape[2];
  a.q_at = a.k_at = a.v_at = first;
  if (!a.packed) {
    const TensorArg& k = call.in[first + 1];
    a.k_at = first + 1, a.v_at = first + 2;
    n.s = k.shape[1];
    n.g = k.shape[2] / n.d;
    n.r = width / k.shape[2];
    a.q = {0, n.t * width, width, n.r * n.d, n.d};
    const int64_t values = call.in[first + 2].shape[2];
    n.e = values / n.g;
    a.k = {0, n.s * k.shape[2], k.shape[2], n.d, 0};
    a.v = {0, n.s * values, values, n.e, 0};
  } else {
    n.r = call.attrs.integer("group", 1);
    n.g = width / ((n.r + 2) * n.d);
    const int64_t group = (n.r + 2) * n.d, batch = n.t * width;
    if (call.attrs.text("packing", "heads") == "heads") {
      a.q = {0, batch, width, group, n.d};
      a.k = {n.r * n.d, batch, width, group, 0};
      a.v = {(n.r + 1) * n.d, batch, width, group, 0};
    } else {
      const int64_t queries = n.heads() * n.d;
      a.q = {0, batch, width, n.r * n.d, n.d};
      a.k = {queries, batch, width, n.d, 0};
      a.v = {queries + n.g * n.d, batch, width, n.d, 0};
    }
  }
  const int64_t features = n.heads() * n.e;
  a.out = {0, n.t * features, features, n.r * n.e, n.e};
  a.masked = count % 2 == 0;
  a.mask_at = first + count - 1;
  a.documents = a.masked && call.attrs.text("mask") == "documents";
  a.causal = call.attrs.flag("causal");
  a.window = call.attrs.integer("window", 0);
  a.first_row = x.offset.size() == 3 ? x.offset[1] : 0;
  if (call.attrs.flag(kExchangesKeys) && !a.packed) {
    const TensorArg& k = call.in[a.k_at];
    a.first_key = k.offset.size() == 3 ? k.offset[1] : 0;
    a.is_partial = call.attrs.flag(kPartOfKeys);
  }
  a.mask_rows = a.masked ? call.in[a.mask_at].shape[1] : n.s;
  if (!a.masked) {  // only relative positions matter, so they count from the first local row or key
    const int64_t shift = a.first_row < a.first_key ? a.first_row : a.first_key;
    a.first_row -= shift, a.first_key -= shift;
  }
  a.scale = static_cast<float>(call.attrs.number("scale", 1.0));
  a.softcap = static_cast<float>(call.attrs.number("softcap", 0.0));
  a.terms = terms_of(call, a, bias_at);
  return a;
}

inline AttentionCall attention_of(const KernelCall& call) { return attention_of(call, 0, call.in.size()); }
/// The call of a gradient op, whose inputs are dy, the inputs of the forward op, its output and the log-sum-exp of each
/// row.
inline AttentionCall attention_of_grad(const KernelCall& call) { return attention_of(call, 1, call.in.size() - 3); }

}  // namespace trainctl
