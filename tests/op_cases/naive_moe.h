// The layer moe, computed with naive loops in double. moe_cases.cpp compares kernels with these. In the shapes, n is
// the number of experts, d the features of a token, h the hidden features of an expert and k the number of experts per
// token.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/ops/moe/expert_load.h"
#include "engine/ops/moe/experts_size.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl::naive_moe {

using namespace naive;

inline double naive_sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// The scores of a row of logits: their sigmoids or their softmax.
inline std::vector<double> naive_scores(const std::vector<double>& logits, bool sigmoid) {
  std::vector<double> s;
  const double top = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const double x : logits) total += std::exp(x - top);
  for (const double x : logits) s.push_back(sigmoid ? naive_sigmoid(x) : std::exp(x - top) / total);
  return s;
}

/// The indices in order of decreasing values. If values are equal, the lower index comes first.
inline std::vector<size_t> by_value(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] > values[b]; });
  return order;
}

/// Returns for each expert whether it is in one of the `top_groups` best groups. The value of a group is its highest
/// score, or the sum of its two highest if scores are sigmoids.
inline std::vector<bool> candidates(const std::vector<double>& s, const Attrs& attrs, bool sigmoid) {
  const auto groups = static_cast<size_t>(attrs.integer("groups", 1));
  const auto chosen = static_cast<size_t>(attrs.integer("top_groups", static_cast<int64_t>(groups)));
  const size_t size = s.size() / groups;
  std::vector<double> values;
  for (size_t g = 0; g < groups; ++g) {
    std::vector<double> own(s.begin() + static_cast<std::ptrdiff_t>(g * size),
                            s.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
    std::sort(own.rbegin(), own.rend());
    values.push_back(own[0] + (sigmoid && size > 1 ? own[1] : 0));
  }
  std::vector<bool> allowed(s.size());
  const std::vector<size_t> order = by_value(values);
  for (size_t i = 0; i < chosen; ++i)
    for (size_t e = 0; e < size; ++e) allowed[order[i] * size + e] = true;
  return allowed;
}

/// Chooses the experts of each token. Inputs: logits [.., n], optionally a bias [n]. Outputs: weights [.., top_k] and
/// ids [.., top_k]. The bias changes only which experts are chosen, not their weights.
inline Outputs route(const Inputs& in, const Attrs& attrs) {
  const int64_t n = in[0].shape.back(), k = attrs.integer("top_k");
  const bool sigmoid = attrs.text("score") == "sigmoid";
  Shape chosen = in[0].shape;
  chosen.back() = k;
  Outputs out{zeros(chosen), zeros(chosen)};
  for (int64_t r = 0; r < static_cast<int64_t>(in[0].values.size()) / n; ++r) {
    const auto row = in[0].values.begin() + r * n;
    const std::vector<double> s = naive_scores({row, row + n}, sigmoid);
    std::vector<double> biased = s;
    for (size_t e = 0; in.size() > 1 && e < biased.size(); ++e) biased[e] += in[1].values[e];
    const std::vector<bool> allowed = candidates(biased, attrs, sigmoid);
    double total = 0;
    int64_t j = 0;
    for (const size_t e : by_value(biased)) {
      if (!allowed[e] || j == k) continue;
      total += out[0].values[r * k + j] = s[e];
      out[1].values[r * k + j++] = static_cast<double>(e);
    }
    for (j = 0; j < k; ++j) out[0].values[r * k + j] *= attrs.number("scale") / (attrs.flag("normalize") ? total : 1);
  }
  return out;
}

inline double naive_activation(ExpertActivation activation, double x) {
  using enum ExpertActivation;
  if (activation == relu) return std::max(x, 0.0);
  if (activation == swiglu || activation == silu) return x * naive_sigmoid(x);
  return activated(Activation::gelu_tanh, x);
}

/// The activation clamped_swiglu of a gate and its other part `up`, both clamped to 7.
inline double naive_clamped(double gate, double up) {
  gate = std::min(gate, 7.0), up = std::clamp(up, -7.0, 7.0);
  return gate * naive_sigmoid(1.702 * gate) * (up + 1);
}

/// Computes the weighted sum of the outputs of the k experts of each token. Inputs: x [.., d], weights [.., k], ids
/// [.., k], up [n, parts, h, d], down [n, d, h], optionally up_bias [n, parts, h] and down_bias [n, d]. Output: y [..,
/// d].
inline Outputs experts(const Inputs& in, const Attrs& attrs) {
  const Shape& up = in[3].shape;
  const int64_t parts = up[1], h = up[2], d = up[3], k = in[2].shape.back();
  const ExpertActivation activation = expert_activation(attrs);
  const bool has_biases = in.size() > 5;
  Outputs out{zeros(in[0].shape), zeros({1})};
  for (int64_t pair = 0; pair < static_cast<int64_t>(in[2].values.size()); ++pair) {
    const int64_t token = pair / k, e = static_cast<int64_t>(in[2].values[pair]);
    std::vector<double> a(h);
    for (int64_t i = 0; i < h; ++i) {
      std::vector<double> u(parts, 0.0);
      for (int64_t p = 0; p < parts && has_biases; ++p) u[p] = in[5].values[(e * parts + p) * h + i];
      for (int64_t p = 0; p < parts; ++p)
        for (int64_t c = 0; c < d; ++c)
          u[p] += in[3].values[((e * parts + p) * h + i) * d + c] * in[0].values[token * d + c];
      a[i] = activation == ExpertActivation::clamped_swiglu
                 ? naive_clamped(u[0], u[1])
                 : naive_activation(activation, u[0]) * (parts == 2 ? u[1] : 1);
    }
    for (int64_t c = 0; c < d && has_biases; ++c)
      out[0].values[token * d + c] += in[1].values[pair] * in[6].values[e * d + c];
    for (int64_t c = 0; c < d; ++c)
      for (int64_t i = 0; i < h; ++i)
        out[0].values[token * d + c] += in[1].values[pair] * in[4].values[(e * d + c) * h + i] * a[i];
  }
  return out;
}

/// The scores of a row of logits, divided by their sum (p in expert_load.h).
inline std::vector<double> naive_probabilities(const std::vector<double>& logits, bool sigmoid) {
  std::vector<double> p = naive_scores(logits, sigmoid);
  double total = 0;
  for (const double s : p) total += s;
  for (double& s : p) s /= total;
  return p;
}

inline double log_sum_exp(const std::vector<double>& logits) {
  double sum = 0;
  for (const double x : logits) sum += std::exp(x);
  return std::log(sum);
}

inline std::vector<double> row_of(const Tensor64& tensor, int64_t row) {
  const int64_t n = tensor.shape.back();
  return {tensor.values.begin() + row * n, tensor.values.begin() + (row + 1) * n};
}

/// Computes the load of the experts. Inputs: logits [.., n], ids [.., k], optionally the ids after drop_pairs. Output:
/// the sums that LoadPlaces lists.
inline Outputs expert_load(const Inputs& in, const Attrs& attrs) {
  const int64_t n = in[0].shape.back(), k = in[1].shape.back();
  const LoadPlaces at{n};
  Outputs out{zeros({at.size()})};
  for (int64_t r = 0; r < static_cast<int64_t>(in[0].values.size()) / n; ++r) {
    const std::vector<double> logits = row_of(in[0], r);
    const std::vector<double> p = naive_probabilities(logits, attrs.text("score") == "sigmoid");
    for (int64_t e = 0; e < n; ++e) {
      out[0].values[at.probability(e)] += p[e];
      out[0].values[at.entropy()] -= p[e] * std::log(p[e]);
    }
    out[0].values[at.square()] += std::pow(log_sum_exp(logits), 2);
    for (int64_t j = r * k; j < (r + 1) * k; ++j) {
      out[0].values[static_cast<size_t>(in[1].values[j])] += 1;
      if (in.size() > 2 && in[2].values[j] < 0) out[0].values[at.dropped()] += 1;
    }
  }
  return out;
}

/// Counts how many tokens of each sequence chose each expert. Input: ids [b, .., k]. Output: counts [b, n].
inline Outputs sequence_load(const Inputs& in, const Attrs& attrs) {
  const int64_t n = attrs.integer("experts"), pairs = static_cast<int64_t>(in[0].values.size()) / in[0].shape[0];
  Outputs out{zeros({in[0].shape[0], n})};
  for (int64_t i = 0; i < static_cast<int64_t>(in[0].values.size()); ++i)
    out[0].values[i / pairs * n + static_cast<int64_t>(in[0].values[i])] += 1;
  return out;
}

/// Drops tokens beyond the capacity. Input: ids [b, .., k]. Output: the same ids, but with -1 for each choice of an
/// expert after its first `most` choices in the same sequence.
inline Outputs drop_pairs(const Inputs& in, const Attrs& attrs) {
  const int64_t pairs = static_cast<int64_t>(in[0].values.size()) / in[0].shape[0];
  Outputs out{in[0]};
  for (int64_t i = 0; i < static_cast<int64_t>(in[0].values.size()); ++i) {
    int64_t before = 0;
    for (int64_t j = i / pairs * pairs; j < i; ++j) before += in[0].values[j] == in[0].values[i];
    if (before >= attrs.integer("most")) out[0].values[i] = -1;
  }
  return out;
}

/// Computes the sum of the balance loss and the z-loss over logits [.., n]. `load` says how often each expert was
/// chosen: it is [n], or [sequences, n] with attribute by_sequence. If it is null, only the z-loss is computed.
inline double balance_losses(const Tensor64& logits, const Tensor64* load, const Attrs& attrs) {
  const int64_t n = logits.shape.back(), rows = static_cast<int64_t>(logits.values.size()) / n;
  const int64_t rows_per_sequence = rows / logits.shape[0];
  const auto tokens = static_cast<double>(attrs.integer("rows"));
  const bool by_sequence = attrs.flag("by_sequence");
  const double choices = static_cast<double>(attrs.integer("of_load") * (by_sequence ? attrs.integer("top_k") : 1));
  double losses = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<double> row = row_of(logits, r);
    const std::vector<double> p = naive_probabilities(row, attrs.text("score") == "sigmoid");
    for (int64_t e = 0; load != nullptr && e < n; ++e) {
      const double chosen = load->values[by_sequence ? r / rows_per_sequence * n + e : e];
      losses += attrs.number("coefficient") * static_cast<double>(n) * chosen / choices * p[e] / tokens;
    }
    losses += attrs.number("z_loss") * std::pow(log_sum_exp(row), 2) / tokens;
  }
  return losses;
}

/// The gradient of balance_losses with respect to the logits, by central differences.
inline Outputs balance_grad(const NaiveCall& call) {
  constexpr double kStep = 1e-5;
  const Tensor64* load = call.in.size() > 1 ? &call.in[1] : nullptr;
  Tensor64 logits = call.in[0];
  Outputs out{zeros(logits.shape)};
  for (size_t i = 0; i < logits.values.size(); ++i) {
    const double at = logits.values[i];
    logits.values[i] = at + kStep;
    const double above = balance_losses(logits, load, call.attrs);
    logits.values[i] = at - kStep;
    out[0].values[i] = (above - balance_losses(logits, load, call.attrs)) / (2 * kStep);
    logits.values[i] = at;
  }
  return out;
}

/// Assigns tokens to ranks. Input: ids [.., k]. Outputs: rows [ranks, most], places [ranks, tokens], counts [ranks].
/// rows has, as its i-th entry for a rank, the i-th token that has an expert on that rank. places has the row of each
/// token on each rank. Both have -1 where there is none.
inline Outputs place_tokens(const NaiveCall& call) {
  const int64_t experts_per_rank = call.attrs.integer("experts_per_rank"), most = call.attrs.integer("rows");
  Outputs out = call.before;
  for (Tensor64* each : {&out[0], &out[1]}) std::fill(each->values.begin(), each->values.end(), -1.0);
  std::fill(out[2].values.begin(), out[2].values.end(), 0.0);
  const int64_t k = call.in[0].shape.back(), ranks = out[1].shape[0], tokens = out[1].shape[1];
  for (int64_t r = 0; r < ranks; ++r)
    for (int64_t t = 0; t < tokens; ++t) {
      bool is_sent = false;
      for (int64_t j = 0; j < k; ++j)
        is_sent |= static_cast<int64_t>(call.in[0].values[t * k + j]) / experts_per_rank == r;
      if (!is_sent) continue;
      out[1].values[r * tokens + t] = out[2].values[r];
      out[0].values[r * most + static_cast<int64_t>(out[2].values[r]++)] = static_cast<double>(t);
    }
  return out;
}

/// Copies tokens. Inputs: x [tokens, width] and rows [..] of place_tokens. Output: the tokens in the order of `rows`.
inline Outputs pack_tokens(const NaiveCall& call) {
  Outputs out = call.before;
  const int64_t width = call.in[0].shape.back();
  for (size_t i = 0; i < out[0].values.size(); ++i) {
    const auto token = static_cast<int64_t>(call.in[1].values[static_cast<int64_t>(i) / width]);
    out[0].values[i] = call.in[0].values[token * width + static_cast<int64_t>(i) % width];
  }
  return out;
}

/// Sums the rows of each token over the ranks. Inputs: y [ranks, rows, width], places [ranks, tokens]. Output: [tokens,
/// width].
inline Outputs sum_tokens(const NaiveCall& call) {
  Outputs out = call.before;
  const int64_t rows = call.in[0].shape[1], width = call.in[0].shape[2], tokens = call.in[1].shape[1];
  std::fill(out[0].values.begin(), out[0].values.end(), 0.0);
  for (int64_t i = 0; i < static_cast<int64_t>(call.in[1].values.size()); ++i)
    for (int64_t c = 0; c < width; ++c)
      out[0].values[i % tokens * width + c] +=
          call.in[0].values[(i / tokens * rows + static_cast<int64_t>(call.in[1].values[i])) * width + c];
  return out;
}

}  // namespace trainctl::naive_moe
