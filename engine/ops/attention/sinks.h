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

/// Adds the input of sinks to a rule of attention. They are cut like the query heads, unless these cannot be cut.
inline void add_sinks(RuleText& rule, bool has_whole_heads) {
  rule.text.insert(rule.text.find("->"), has_whole_heads ? ",h" : ",(gr)");
  if (has_whole_heads) rule.uncuttable += "h";
}

}  // namespace trainctl
