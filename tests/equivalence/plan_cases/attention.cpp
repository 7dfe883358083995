// Attention: heads, windows, softcaps, documents, and terms of scores.
#include "tests/equivalence/plan_cases/families.h"
#include "tests/equivalence/plan_cases/overrides.h"

namespace trainctl {

using namespace plan_overrides;

std::vector<PlanCase> attention_cases() {
  return {
      // attention
      {"attention: data parallel, 3 ranks", "attention", {}, {ranks(3), kData}},
      {"attention: units cut, 4 ranks",
       "attention",
       {},
       {ranks(4), kSemi,
        "parallel.strategies={q: [[2, 1, 1], [2, 1]], k: [[2, 1, 1], [2, 1]], v: [[1, 1, 1], [4, 1]], out: [[2, 2], "
        "[1, 2]]}"}},
      {"attention: 2 stages of 4, level 2", "attention", {kMicro2}, {ranks(8), kSemi, kTwoStages, kShard2}},
      {"heads: data parallel, 3 ranks", "heads", {}, {ranks(3), kData}},
      {"heads: heads and rows of queries cut, 4 ranks",
       "heads",
       {},
       {ranks(4), kSemi,
        "parallel.strategies={qkv: [[2, 1, 1], [2, 1]], turned: [[2, 1, 2]], mixed: [[2, 1, 2]], cross: [[1, 2, 2], "
        "[1, 1, 2], [1, 1, 2]]}"}},
      {"heads: rows of queries cut in 3, recomputed",
       "heads",
       {kMicro2},
       {ranks(3), kSemi, "parallel.strategies={cross: [[1, 3, 1], [1, 1, 1], [1, 1, 1]]}",
        "parallel.recompute=[turned, mixed, cross]"}},
      {"heads: 2 stages of 3, level 3", "heads", {kMicro2}, {ranks(6), kSemi, kTwoStages, kShard3}},
  };
}

std::vector<PlanCase> masked_attention_cases() {
  return {
      // windows, softcaps, norms of heads
      {"gemma: data parallel, 3 ranks, level 2", "gemma", {kMicro2}, {ranks(3), kData, kShard2}, kAdamTolerance},
      {"gemma: data parallel, 4 ranks, level 3", "gemma", {}, {ranks(4), kData, kShard3}, kAdamTolerance},
      {"gemma: heads and hidden units, 3 ranks, level 1",
       "gemma",
       {},
       {ranks(3), kSemi, kShard1,
        "parallel.strategies={'*.q': [[1, 1, 1], [3, 1]], '*.k': [[1, 1, 1], [3, 1]], '*.v': [[1, 1, 1], [3, 1]], "
        "'*.proj': [[1, 1, 3], [1, 3]], '*.gate': [[1, 1, 1], [3, 1]], '*.up': [[1, 1, 1], [3, 1]], "
        "'*.down': [[1, 1, 3], [1, 3]]}"},
       kAdamTolerance},
      {"gemma: rows of queries cut, 4 ranks",
       "gemma",
       {},
       {ranks(4), kSemi, "parallel.strategies={'*.attn': [[1, 4, 1], [1, 1, 1], [1, 1, 1]], '*.norm?': [[1, 4, 1]]}"},
       kAdamTolerance},
      {"gemma: rows of queries and heads cut, 6 ranks, recompute",
       "gemma",
       {kMicro2},
       {ranks(6), kSemi, "parallel.recompute=['*.?_norm', '*.?_turn', '*.attn']",
        "parallel.strategies={'*.attn': [[1, 2, 3], [1, 1, 3], [1, 1, 3]], '*.norm?': [[1, 3, 1]]}"},
       kAdamTolerance},
      {"gemma: 2 stages of 2, tied, level 1",
       "gemma",
       {kMicro2},
       {ranks(4), kSemi, kTwoStages, kShard1},
       kAdamTolerance},
      // documents
      {"documents: data parallel, 3 ranks, level 3", "documents", {kMicro2}, {ranks(3), kData, kShard3}},
      {"documents: heads and rows of queries cut, 4 ranks",
       "documents",
       {},
       {ranks(4), kSemi,
        "parallel.strategies={mixed: [[2, 1, 2], [2, 1]], cross: [[1, 2, 2], [1, 1, 2], [1, 1, 2], [1, 1]], q_turn: "
        "[[1, 4, 1], [1, 4]]}"}},
      {"documents: rows of 2 ranks in a ring, data parallel",
       "documents",
       {kMicro2},
       {ranks(4), kSemi, "parallel.context=2", "parallel.context_method=ring"}},
      {"documents: rows of 4 ranks, keys gathered",
       "documents",
       {},
       {ranks(4), kSemi, "parallel.context=4", "parallel.context_method=gather", kShard2}},
      {"documents: rows of 2 ranks exchanged for heads",
       "documents",
       {},
       {ranks(2), kSemi, "parallel.context=2", "parallel.context_method=ulysses"}},
      {"documents: 2 stages of 2", "documents", {kMicro2}, {ranks(4), kSemi, kTwoStages}},
      // ALiBi, biases of scores, dropout of weights
      {"score_terms: data parallel, 3 ranks, level 3", "score_terms", {kMicro2}, {ranks(3), kData, kShard3}},
      {"score_terms: heads and rows of queries cut, 4 ranks, recomputed",
       "score_terms",
       {},
       {ranks(4), kSemi, "parallel.recompute=[mixed, cross]",
        "parallel.strategies={mixed: [[2, 1, 2], [2, 1], [2, 1, 1]], cross: [[1, 2, 2], [1, 1, 2], [1, 1, 2], [1, 1], "
        "[1, 1, 1], [2]]}"}},
      {"score_terms: rows of 2 ranks in a ring, data parallel",
       "score_terms",
       {kMicro2},
       {ranks(4), kSemi, "parallel.context=2", "parallel.context_method=ring"}},
      {"score_terms: rows of 4 ranks, keys gathered",
       "score_terms",
       {},
       {ranks(4), kSemi, "parallel.context=4", "parallel.context_method=gather", kShard2}},
      {"score_terms: rows of 2 ranks exchanged for heads",
       "score_terms",
       {},
       {ranks(2), kSemi, "parallel.context=2", "parallel.context_method=ulysses"}},
      {"score_terms: 2 stages of 2", "score_terms", {kMicro2}, {ranks(4), kSemi, kTwoStages}},
  };
}

}  // namespace trainctl
