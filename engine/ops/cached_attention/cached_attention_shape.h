// The operands of one call of cached attention, for the kernels of both devices.
#pragma once

#include "engine/ops/attention/attention_shape.h"

namespace trainctl {

struct CachedAttentionCall {
  AttentionCall heads;    ///< sizes and strides of q, k, v and out; `size.s` is not used
  int64_t positions = 0;  ///< rows of the caches
  Heads k_cache{}, v_cache{};
};

/// Inputs before those of attention: the caches of keys and values, and the first positions.
inline constexpr size_t kCacheInputs = 3;

inline CachedAttentionCall cached_attention_of(const KernelCall& call) {
  CachedAttentionCall a{.heads = attention_of(call, kCacheInputs, call.in.size() - kCacheInputs)};
  a.positions = call.in[0].shape[1];
  const auto cache = [&](int64_t features) {
    const int64_t row = a.heads.size.g * features;
    return Heads{0, a.positions * row, row, features, 0};
  };
  a.k_cache = cache(a.heads.size.d), a.v_cache = cache(a.heads.size.e);
  return a;
}

}  // namespace trainctl
