// Chooses the next token of a text from its logits, as the logits processors of transformers do, in their order:
// repetition penalty, temperature, top-k, top-p.
#include "engine/train/trainer/sampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/ops/random.h"

namespace trainctl {
namespace {

void penalize(std::span<float> logits, std::span<const int32_t> so_far, double penalty) {
  const std::unordered_set<int32_t> seen(so_far.begin(), so_far.end());
  for (const int32_t token : seen) {
    if (token < 0 || static_cast<size_t>(token) >= logits.size()) continue;
    float& logit = logits[static_cast<size_t>(token)];
    logit = static_cast<float>(logit < 0 ? logit * penalty : logit / penalty);
  }
}

/// Tokens that may be chosen, with their logits, the most probable first.
using Candidates = std::vector<std::pair<float, int32_t>>;

bool comes_first(const std::pair<float, int32_t>& a, const std::pair<float, int32_t>& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

/// With top_k, all tokens whose logit equals the k-th remain candidates.
Candidates candidates_of(std::span<const float> logits, int64_t top_k) {
  Candidates all;
  const auto k = static_cast<size_t>(std::max<int64_t>(0, top_k));
  float least = -INFINITY;
  if (k > 0 && k < logits.size()) {
    std::vector<float> copy(logits.begin(), logits.end());
    std::nth_element(copy.begin(), copy.begin() + static_cast<std::ptrdiff_t>(k) - 1, copy.end(), std::greater<>());
    least = copy[k - 1];
  }
  for (size_t token = 0; token < logits.size(); ++token)
    if (logits[token] >= least) all.emplace_back(logits[token], static_cast<int32_t>(token));
  std::sort(all.begin(), all.end(), comes_first);
  return all;
}

/// Probabilities of the candidates.
std::vector<double> softmax_of(const Candidates& candidates) {
  std::vector<double> p;
  p.reserve(candidates.size());
  for (const auto& [logit, token] : candidates) p.push_back(std::exp(double{logit} - double{candidates[0].first}));
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& each : p) each /= total;
  return p;
}

/// Drops the least probable tokens whose probabilities add up to at most 1 - top_p; one token remains.
void keep_top_p(Candidates& candidates, double top_p) {
  const std::vector<double> p = softmax_of(candidates);
  double dropped = 0;
  while (candidates.size() > 1 && (dropped += p[candidates.size() - 1]) <= 1 - top_p) candidates.pop_back();
}

/// Integers in the order of floats; both zeros have one.
int32_t key_of(float value) {
  const auto bits = std::bit_cast<int32_t>(value + 0.0f);
  return bits ^ (bits >> 31 & 0x7fffffff);
}

/// The first of the largest logits. Loops of fixed length over integers are vectorised, and std::max_element is not.
int32_t first_largest(std::span<const float> logits) {
  constexpr size_t kLanes = 16;
  std::array<int32_t, kLanes> most;
  most.fill(std::numeric_limits<int32_t>::min());
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane) most[lane] = std::max(most[lane], key_of(logits[i + lane]));
  for (; i < logits.size(); ++i) most[0] = std::max(most[0], key_of(logits[i]));
  const int32_t largest = *std::max_element(most.begin(), most.end());
  const auto found =
      std::find_if(logits.begin(), logits.end(), [largest](float logit) { return key_of(logit) == largest; });
  return static_cast<int32_t>(found - logits.begin());
}

}  // namespace

int32_t next_token(std::span<float> logits, std::span<const int32_t> so_far, const SamplingSettings& settings,
                   uint64_t text) {
  if (settings.repetition_penalty != 1) penalize(logits, so_far, settings.repetition_penalty);
  if (settings.temperature <= 0) return first_largest(logits);
  for (float& logit : logits) logit = static_cast<float>(logit / settings.temperature);
  Candidates candidates = candidates_of(logits, settings.top_k);
  if (settings.top_p < 1) keep_top_p(candidates, settings.top_p);
  const std::vector<double> p = softmax_of(candidates);
  const Philox4 random = philox(settings.seed, so_far.size(), text);
  double left = (random.v[0] * 0x1p-32 + random.v[1]) * 0x1p-32;  // in [0, 1)
  for (size_t i = 0; i + 1 < p.size(); ++i)
    if ((left -= p[i]) < 0) return candidates[i].second;
  return candidates.back().second;
}

}  // namespace trainctl
