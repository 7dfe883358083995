// The post-processor of a tokenizer.json: the special tokens around a text.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/text/json_part.h"

namespace trainctl {

struct TokensAround {
  std::vector<int32_t> before, after;
};
/// Throws EnvError for a type that is not supported.
TokensAround read_post_processor(const JsonPart& part);

}  // namespace trainctl
