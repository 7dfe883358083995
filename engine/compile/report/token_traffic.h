// The bytes of tokens that ranks send to the experts of other ranks and back in a step
// (compile/lower/exchange_tokens.cpp): a plan knows the most and the expected ones, because the rows that are moved are
// counted when they are sent.
#pragma once

#include <cstdint>

#include "engine/compile/rank_classes.h"

namespace trainctl {

struct TokenTraffic {
  int64_t most = 0;      ///< bytes if each token has an expert at each rank
  int64_t expected = 0;  ///< expected bytes if all experts are equally probable
};

/// The traffic of one step, over all ranks. Both are equal where whole blocks are moved; 0 without an exchange of
/// tokens.
TokenTraffic token_traffic_of_step(const RankClasses& classes);

}  // namespace trainctl
