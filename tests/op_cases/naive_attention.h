// Attention and the kernels around it, computed with naive loops in double. attention_cases.cpp compares kernels with
// these.
#pragma once

#include <cmath>

#include "engine/ops/attention/key_exchange.h"
#include "engine/ops/attention/score_terms.h"
#include "engine/ops/attention/sinks.h"
#include "engine/ops/row_order.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl::naive_attention {

using namespace naive;

/// Gives access to the features of each head by index, wherever the inputs store them.
struct NaiveHeads {
  const Inputs& in;
  int64_t t, s, g, r, d, e;  ///< e: features of a head of values
  int64_t window;
  bool packed, side_by_side, documents, has_sinks;
  size_t count;  ///< inputs without the bias of scores and the sinks

  NaiveHeads(const Inputs& inputs, const Attrs& attrs) : in(inputs), d(attrs.integer("head_dim")) {
    has_sinks = attrs.flag(kSinks);
    count = in.size() - extra_inputs(attrs);
    packed = count <= 2;
    documents = attrs.text("mask") == "documents";
    window = attrs.integer("window", 0);
    side_by_side = attrs.text("packing", "heads") == "qkv";
    t = in[0].shape[1];
    s = packed ? t : in[1].shape[1];
    r = packed ? attrs.integer("group", 1) : in[0].shape[2] / in[1].shape[2];
    g = packed ? in[0].shape[2] / d / (r + 2) : in[1].shape[2] / d;
    e = packed ? d : in[2].shape[2] / g;
  }

  double q(int64_t b, int64_t i, int64_t head, int64_t feature) const {
    const int64_t block = packed && !side_by_side ? head / r * (r + 2) + head % r : head;
    return of(0, b, i, block * d + feature);
  }
  double k(int64_t b, int64_t j, int64_t head, int64_t feature) const { return key(1, b, j, head / r, feature); }
  double v(int64_t b, int64_t j, int64_t head, int64_t feature) const { return key(2, b, j, head / r, feature); }
  bool sees(int64_t b, int64_t i, int64_t j, bool causal) const {
    if (causal && j > i) return false;
    if (window > 0 && i - j >= window) return false;
    if (documents) {
      const double own = in[count - 1].values[b * s + i];
      return in[count - 1].values[b * s + j] == own && static_cast<double>(j) >= own;
    }
    return count % 2 == 1 || in[count - 1].values[b * s + j] != 0;
  }

 private:
  double of(size_t input, int64_t b, int64_t row, int64_t feature) const {
    const Shape& shape = in[input].shape;
    return in[input].values[(b * shape[1] + row) * shape[2] + feature];
  }
  /// A feature of key (`which` 1) or value (`which` 2) number j of a head.
  double key(int64_t which, int64_t b, int64_t j, int64_t head, int64_t feature) const {
    if (!packed) return of(static_cast<size_t>(which), b, j, head * (which == 1 ? d : e) + feature);
    const int64_t block = side_by_side ? g * r + (which - 1) * g + head : head * (r + 2) + r + which - 1;
    return of(0, b, j, block * d + feature);
  }
};

/// Returns the sum of the terms that are added to the score of row i and key j of head h.
inline double added_to_score(const NaiveHeads& n, const Attrs& attrs, int64_t b, int64_t h, int64_t i, int64_t j) {
  double sum = 0;
  if (attrs.flag(kAlibi)) {
    // With 12 heads the slopes of ALiBi are 2^-1 to 2^-8, then 2^-0.5, 2^-1.5, 2^-2.5 and 2^-3.5.
    int64_t power = 1;
    while (power * 2 <= n.g * n.r) power *= 2;
    const double step = 8.0 / static_cast<double>(power);
    const double exponent =
        h < power ? step * static_cast<double>(h + 1) : step * (static_cast<double>(h - power) + 0.5);
    sum -= std::exp2(-exponent) * static_cast<double>(std::abs(i - j));
  }
  if (!attrs.has(kScoreBias)) return sum;
  const Tensor64& bias = n.in[n.count];
  const BiasDims dims = BiasDims::of(bias.shape, attrs.text(kScoreBias));
  const auto index = [](int64_t at, int64_t size) { return size > 1 ? at : 0; };
  return sum + bias.values[((index(b, dims.b) * dims.h + index(h, dims.h)) * dims.r + index(i, dims.r)) * dims.k + j];
}

/// The factor by which dropout multiplies the weight of key j.
inline double factor_of_dropout(const NaiveHeads& n, const Attrs& attrs, int64_t b, int64_t h, int64_t i, int64_t j) {
  const double p = attrs.number(kScoreDropout, 0);
  if (p == 0) return 1;
  const int64_t sample = attrs.has("batch") ? kCaseMicroBatch * n.in[0].shape[0] + b : b;
  const int64_t row = ((sample * n.t + i) * n.g * n.r + h) * ((n.s + 3) / 4 * 4);
  const bool kept = keeps(p, attrs.integer(kScoreDropoutKey), kCaseSeed, kCaseStep, static_cast<size_t>(row + j));
  return kept ? 1 / (1 - p) : 0;
}

/// Computes out [b, t, heads * e] and the log-sum-exp of each row [b, g, r, t], row by row.
inline Outputs attention(const Inputs& in, const Attrs& attrs) {
  const NaiveHeads n(in, attrs);
  const int64_t batch = in[0].shape[0], heads = n.g * n.r;
  const bool causal = attrs.flag("causal");
  const double scale = attrs.number("scale", 1.0), softcap = attrs.number("softcap", 0);
  Outputs out{zeros({batch, n.t, heads * n.e}), zeros({batch, n.g, n.r, n.t})};
  std::vector<double> p(n.s);
  std::vector<bool> seen(n.s);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < n.t; ++i) {
        const double sink = n.has_sinks ? in.back().values[h] : -INFINITY;
        double top = sink, total = 0;
        for (int64_t j = 0; j < n.s; ++j) {
          p[j] = 0;
          for (int64_t e = 0; e < n.d; ++e) p[j] += scale * n.q(b, i, h, e) * n.k(b, j, h, e);
          if (softcap > 0) p[j] = softcap * std::tanh(p[j] / softcap);
          p[j] += added_to_score(n, attrs, b, h, i, j);
          seen[j] = n.sees(b, i, j, causal) && p[j] > -INFINITY;
          if (seen[j]) top = std::max(top, p[j]);
        }
        for (int64_t j = 0; j < n.s; ++j) total += p[j] = seen[j] ? std::exp(p[j] - top) : 0.0;
        if (n.has_sinks) total += std::exp(sink - top);
        if (total == 0 && attrs.flag(kPartOfKeys)) out[1].values[(b * heads + h) * n.t + i] = kNoKeys;
        if (total == 0) continue;
        out[1].values[(b * heads + h) * n.t + i] = top + std::log(total);
        for (int64_t j = 0; j < n.s; ++j) {
          const double weight = p[j] / total * factor_of_dropout(n, attrs, b, h, i, j);
          for (int64_t e = 0; e < n.e; ++e)
            out[0].values[((b * n.t + i) * heads + h) * n.e + e] += weight * n.v(b, j, h, e);
        }
      }
    }
  }
  return out;
}

/// Computes the gradient of the sinks. The inputs are dy, out, logs and sinks; dy and out are in the order of the
/// ranks' rows.
inline Outputs sinks_grad(const NaiveCall& call) {
  const Shape& shape = call.in[0].shape;
  const int64_t heads = call.in[3].shape[0], t = shape[1], e = shape[2] / heads;
  const RowOrder order = RowOrder::of(call.attrs, t);
  Outputs out{zeros({heads})};
  for (int64_t row = 0; row < shape[0] * t; ++row)
    for (int64_t h = 0; h < heads; ++h) {
      double dot = 0;
      for (int64_t i = (row * heads + h) * e; i < (row * heads + h + 1) * e; ++i)
        dot += call.in[0].values[i] * call.in[1].values[i];
      const double log = call.in[2].values[(row / t * heads + h) * t + order.position(row % t)];
      out[0].values[h] -= std::exp(call.in[3].values[h] - log) * dot;
    }
  return out;
}

inline Outputs attention_call(const NaiveCall& call) { return attention(call.in, call.attrs); }

/// Merges the results of two blocks of keys. The inputs are out and logs of each block.
inline Outputs merged(const NaiveCall& call) {
  const Shape& logs = call.in[1].shape;
  const int64_t heads = logs[1] * logs[2], t = logs[3], e = call.in[0].shape[2] / heads;
  Outputs out{zeros(call.in[0].shape), zeros(logs)};
  for (int64_t row = 0; row < logs[0] * heads * t; ++row) {
    const double a = call.in[1].values[row], b = call.in[3].values[row], top = std::max(a, b);
    if (top <= double{kNoKeys}) {
      out[1].values[row] = call.attrs.flag("last") ? 0.0 : double{kNoKeys};
      continue;
    }
    const double of_a = std::exp(a - top), of_b = std::exp(b - top);
    out[1].values[row] = top + std::log(of_a + of_b);
    const int64_t head = row / t, at = ((head / heads * t + row % t) * heads + head % heads) * e;
    for (int64_t i = at; i < at + e; ++i)
      out[0].values[i] = (of_a * call.in[0].values[i] + of_b * call.in[2].values[i]) / (of_a + of_b);
  }
  return out;
}

inline Outputs reordered(const NaiveCall& call) {
  const Tensor64& x = call.in[0];
  const int64_t rows = x.shape[1], features = x.shape[2];
  const RowOrder order = RowOrder::of(call.attrs, rows);
  Outputs out{zeros(x.shape)};
  for (int64_t i = 0; i < num_elements(x.shape); ++i) {
    const int64_t row = i / features,
                  place = (row / rows * rows + order.position(row % rows)) * features + i % features;
    const bool to_order = call.attrs.flag("to_order");
    out[0].values[to_order ? i : place] = x.values[to_order ? place : i];
  }
  return out;
}

/// The gradients of calls in which no row attends to any key.
inline Outputs unseen_grad(const NaiveCall& call) {
  Outputs out;
  for (const Tensor64& before : call.before) out.push_back(zeros(before.shape));
  return out;
}

}  // namespace trainctl::naive_attention
