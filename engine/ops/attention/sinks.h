// Attention sinks (gpt-oss): one learned logit s per query head, without a key, in the denominator of the softmax. With
// the attr kSinks the last input of attention and cached_attention has them, [heads]. If L is the log of a row's sum of
// exponentials without the sink:
//
//   logs' = log(e^L + e^s)      out' = e^(L - logs') * out
//
// The gradient of attention needs nothing else: with out' and logs' it computes the gradients of q, k and v. That of a
// sink is the sum over its rows of -e^(s - logs') * (dy . out').
#pragma once

#include "engine/graph/rule.h"
#include "engine/ops/kernel_def.h"

namespace trainctl {

inline constexpr const char* kSinks = "sinks";

/// The inputs without the sinks.
inline Infos without_sinks(Infos in, const Attrs& attrs) {
  return attrs.flag(kSinks) && !in.empty() ? in.first(in.size() - 1) : in;
}

/// Adds the input of the sinks, [heads], to a rule of attention. In such a rule g counts the key heads and r the query
/// heads of each key head, so "(gr)" is a dim of all query heads that is cut like them. `keeps_all_heads`: no head can
/// be cut, so the sinks get a factor of their own, h, that cannot be cut either.
inline void add_sinks(RuleText& rule, bool keeps_all_heads) {
  rule.text.insert(rule.text.find("->"), keeps_all_heads ? ",h" : ",(gr)");
  if (keeps_all_heads) rule.uncuttable += "h";
}

}  // namespace trainctl
