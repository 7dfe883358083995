// Chooses the next token of a text from its logits, as the logits processors of transformers do, in their order:
// repetition penalty, temperature, top-k, top-p. A random choice depends only on the seed, the text and the position,
// so it is the same under every plan.
#pragma once

#include <cstdint>
#include <span>

namespace trainctl {

struct SamplingSettings {
  double temperature = 0;         ///< 0: the most probable token (greedy)
  int64_t top_k = 0;              ///< only tokens among the k most probable; 0: all
  double top_p = 1;               ///< only the most probable tokens whose probabilities add up to p; 1: all
  double repetition_penalty = 1;  ///< divides the positive logits of tokens of the text so far, multiplies others
  uint64_t seed = 0;
};

/// Changes the logits. `so_far`: the prompt and the tokens that follow it. `text`: number of the text among those of a
/// call; the position of the token is the size of `so_far`.
int32_t next_token(std::span<float> logits, std::span<const int32_t> so_far, const SamplingSettings& settings,
                   uint64_t text);

}  // namespace trainctl
