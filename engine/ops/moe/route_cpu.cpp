// The router on CPUs: scores of a row, the k largest of the candidates, and their gradient.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/kernel.h"
#include "engine/ops/moe/routing.h"

namespace trainctl {
namespace {

constexpr int64_t kLeastRoutedScores = 16384;  ///< below this, waking a thread takes longer than the work

/// Computes the scores s of a row of logits (route.cpp).
void scores_of(const Routing& routing, const float* logits, float* s) {
  const int n = routing.experts;
  if (routing.sigmoid) {
    for (int e = 0; e < n; ++e) s[e] = 1.0f / (1.0f + cpu::exp(-logits[e]));
    return;
  }
  const float top = *std::max_element(logits, logits + n);
  float total = 0;
  for (int e = 0; e < n; ++e) total += s[e] = cpu::exp(logits[e] - top);
  for (int e = 0; e < n; ++e) s[e] /= total;
}

/// The index of the largest value that is not yet taken; of equal ones the first.
int largest_of(const float* values, const bool* taken, int n) {
  int best = -1;
  for (int i = 0; i < n; ++i)
    if (!taken[i] && (best < 0 || values[i] > values[best])) best = i;
  return best;
}

/// The memory of one thread.
struct RouteBuffers {
  /// `ranks` are the scores plus the bias, by which the experts are chosen.
  std::vector<float> scores, groups, ranks;
  std::unique_ptr<bool[]> taken, group_taken;

  explicit RouteBuffers(const Routing& r)
      : scores(static_cast<size_t>(r.experts)),
        groups(static_cast<size_t>(r.groups)),
        ranks(static_cast<size_t>(r.experts)),
        taken(new bool[static_cast<size_t>(r.experts)]),
        group_taken(new bool[static_cast<size_t>(r.groups)]) {}
};

float value_of_group(const Routing& routing, const float* s) {
  const int n = routing.group_size();
  float first = -INFINITY, second = -INFINITY;
  for (int i = 0; i < n; ++i) {
    if (s[i] > first) {
      second = first;
      first = s[i];
    } else {
      second = std::max(second, s[i]);
    }
  }
  return routing.sigmoid && n > 1 ? first + second : first;
}

/// Marks the experts of all groups but the best ones as taken.
void leave_out_groups(const Routing& routing, RouteBuffers& buffers) {
  const int n = routing.group_size();
  for (int g = 0; g < routing.groups; ++g)
    buffers.groups[static_cast<size_t>(g)] = value_of_group(routing, buffers.ranks.data() + g * n);
  std::fill_n(buffers.group_taken.get(), routing.groups, false);
  for (int i = 0; i < routing.top_groups; ++i)
    buffers.group_taken[static_cast<size_t>(
        largest_of(buffers.groups.data(), buffers.group_taken.get(), routing.groups))] = true;
  for (int g = 0; g < routing.groups; ++g)
    std::fill_n(buffers.taken.get() + g * n, n, !buffers.group_taken[static_cast<size_t>(g)]);
}

/// Chooses the experts of one token, and writes their weights and ids.
void choose(const Routing& routing, RouteBuffers& buffers, const float* logits, const float* bias, float* weights,
            int32_t* ids) {
  scores_of(routing, logits, buffers.scores.data());
  buffers.ranks = buffers.scores;
  if (bias != nullptr)
    for (size_t e = 0; e < buffers.ranks.size(); ++e) buffers.ranks[e] += bias[e];
  leave_out_groups(routing, buffers);
  float total = kLeastScores;
  for (int j = 0; j < routing.top_k; ++j) {
    const int e = largest_of(buffers.ranks.data(), buffers.taken.get(), routing.experts);
    buffers.taken[static_cast<size_t>(e)] = true;
    ids[j] = e;
    total += weights[j] = buffers.scores[static_cast<size_t>(e)];
  }
  const float factor = routing.normalize ? routing.scale / total : routing.scale;
  for (int j = 0; j < routing.top_k; ++j) weights[j] *= factor;
}

/// Computes dlogits of a row from dweights: backwards through the division by the sum, then through the scores.
void choose_grad(const Routing& routing, RouteBuffers& buffers, const float* dweights, const float* logits,
                 const int32_t* ids, float* dlogits) {
  float* const s = buffers.scores.data();
  scores_of(routing, logits, s);
  float total = kLeastScores, sum = 0;
  for (int j = 0; j < routing.top_k; ++j) {
    total += s[ids[j]];
    sum += dweights[j] * s[ids[j]];
  }
  const float factor = routing.normalize ? routing.scale / total : routing.scale;
  const float constant = routing.normalization_gradient(dweights[0], sum, total);
  std::fill_n(dlogits, routing.experts, 0.0f);
  float along = 0;  // sum of ds * s, which softmax subtracts
  for (int j = 0; j < routing.top_k; ++j) {
    const float ds = factor * (dweights[j] - constant);
    dlogits[ids[j]] += ds;
    along += ds * s[ids[j]];
  }
  for (int e = 0; e < routing.experts; ++e)
    dlogits[e] = routing.sigmoid ? dlogits[e] * s[e] * (1 - s[e]) : s[e] * (dlogits[e] - along);
}

/// Calls f(row, buffers of the thread) for each row.
template <class F>
CpuKernel by_rows(const Routing& routing, int64_t rows, int threads, F f) {
  auto buffers = std::make_shared<std::vector<RouteBuffers>>();
  const int64_t worth = rows * routing.experts / kLeastRoutedScores;
  const int parts = static_cast<int>(std::clamp<int64_t>(worth, 1, threads));
  for (int i = 0; i < parts; ++i) buffers->emplace_back(routing);
  return [=] {
    cpu::run_parts(parts, [&](int part) {
      for (int64_t r = rows * part / parts; r < rows * (part + 1) / parts; ++r)
        f(r, (*buffers)[static_cast<size_t>(part)]);
    });
  };
}

}  // namespace

CpuKernel prepare_route(const KernelCall& call) {
  const int64_t n = call.in[0].shape.back(), k = call.out[0].shape.back();
  const Routing routing = Routing::of(call.attrs, n);
  return by_rows(routing, call.in[0].size() / n, call.threads,
                 [=, logits = call.in[0].as<float>(), weights = call.out[0].as<float>(),
                  bias = call.in.size() > 1 ? call.in[1].as<float>() : nullptr,
                  ids = call.out[1].as<int32_t>()](int64_t r, RouteBuffers& buffers) {
                   choose(routing, buffers, logits + r * n, bias, weights + r * k, ids + r * k);
                 });
}

CpuKernel prepare_route_grad(const KernelCall& call) {
  const int64_t n = call.in[1].shape.back(), k = call.in[0].shape.back();
  const Routing routing = Routing::of(call.attrs, n);
  return by_rows(routing, call.in[1].size() / n, call.threads,
                 [=, dweights = call.in[0].as<float>(), logits = call.in[1].as<float>(), ids = call.in[2].as<int32_t>(),
                  dlogits = call.out[0].as<float>()](int64_t r, RouteBuffers& buffers) {
                   choose_grad(routing, buffers, dweights + r * k, logits + r * n, ids + r * k, dlogits + r * n);
                 });
}

}  // namespace trainctl
