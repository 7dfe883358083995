// Tests how the next token is drawn from the logits.
#include "engine/train/trainer/sampling.h"

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <vector>

namespace trainctl {
namespace {

const std::vector<float> kLogits = {1.0f, 3.0f, -2.0f, 2.5f, 2.0f};

/// Computes how often each token is chosen among many positions, as a share.
std::map<int32_t, double> shares(const SamplingSettings& settings, std::vector<float> logits = kLogits) {
  constexpr int kDraws = 20000;
  std::map<int32_t, double> counts;
  for (int draw = 0; draw < kDraws; ++draw) {
    std::vector<float> now = logits;
    const std::vector<int32_t> so_far(1, 0);
    counts[next_token(now, so_far, settings, static_cast<uint64_t>(draw))] += 1.0 / kDraws;
  }
  return counts;
}

int32_t greedy(std::vector<float> logits, const std::vector<int32_t>& so_far, double penalty) {
  return next_token(logits, so_far, {.repetition_penalty = penalty}, 0);
}

}  // namespace

TEST_CASE("temperature 0 selects the most probable token, and the first of equal ones") {
  CHECK(greedy(kLogits, {0}, 1) == 1);
  CHECK(greedy({2, 5, 5}, {0}, 1) == 1);
}

TEST_CASE("a repetition penalty divides positive logits of tokens so far, and multiplies negative ones") {
  CHECK(greedy(kLogits, {1}, 1.1) == 1);
  CHECK(greedy(kLogits, {1, 1}, 1.3) == 3);  // once, however often the token occurs: 3 / 1.3 < 2.5
  CHECK(greedy({-1.0f, -1.1f}, {0}, 1.2) == 1);
}

TEST_CASE("tokens are drawn with the probabilities of the softmax at the temperature") {
  std::map<int32_t, double> drawn = shares({.temperature = 2});
  double total = 0;
  for (const float logit : kLogits) total += std::exp(logit / 2);
  for (size_t token = 0; token < kLogits.size(); ++token)
    CHECK(drawn[static_cast<int32_t>(token)] == doctest::Approx(std::exp(kLogits[token] / 2) / total).epsilon(0.05));
}

TEST_CASE("top-k keeps the k most probable tokens, and those equal to the last of them") {
  CHECK(shares({.temperature = 1, .top_k = 1}).size() == 1);
  CHECK(shares({.temperature = 1, .top_k = 2}).size() == 2);
  CHECK(shares({.temperature = 1, .top_k = 2}, {1, 3, 2, 2}).size() == 3);
}

TEST_CASE("top-p keeps the fewest tokens that have probability p together") {
  // Probabilities 0.5, 0.3 and 0.2.
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  CHECK(shares({.temperature = 1, .top_p = 0.4}, logits).size() == 1);
  CHECK(shares({.temperature = 1, .top_p = 0.7}, logits).size() == 2);
  CHECK(shares({.temperature = 1, .top_p = 0.9}, logits).size() == 3);
  CHECK(shares({.temperature = 1, .top_p = 0.0}, logits).size() == 1);
}

TEST_CASE("the choice depends only on the seed, the text and the position") {
  const SamplingSettings settings{.temperature = 1, .seed = 5};
  const std::vector<int32_t> so_far = {1, 2, 3};
  std::vector<float> a = kLogits, b = kLogits;
  CHECK(next_token(a, so_far, settings, 7) == next_token(b, so_far, settings, 7));
  std::map<int32_t, int> by_seed;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<float> logits = kLogits;
    ++by_seed[next_token(logits, so_far, {.temperature = 1, .seed = seed}, 7)];
  }
  CHECK(by_seed.size() > 1);
}

}  // namespace trainctl
