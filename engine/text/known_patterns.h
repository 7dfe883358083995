// Patterns of well-known tokenizers as loops over characters, several times as fast as a regular expression.
#pragma once

#include <optional>
#include <string_view>

#include "engine/text/pattern.h"

namespace trainctl {

/// GPT-2's, which the pre-tokenizer ByteLevel uses.
extern const std::string_view kGpt2Pattern;
extern const std::string_view kLlama3Pattern;
extern const std::string_view kQwen2Pattern;  ///< used by Qwen2 and later

/// A loop that cuts as the pattern does, if there is one.
std::optional<Cutter> find_known_pattern(std::string_view pattern);

}  // namespace trainctl
