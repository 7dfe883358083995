// The normalizer of a tokenizer.json: what happens to a text before it is cut.
#pragma once

#include <functional>
#include <string>

#include "engine/text/json_part.h"

namespace trainctl {

/// A text on its way through the normalizers.
struct NormalizedText {
  std::string text;
  /// Bytes at the front that come from the first character of the original text: one that NFKC decomposes, for example,
  /// becomes several characters. 0 if it was dropped.
  size_t start_bytes = 1;
};

using Normalizer = std::function<void(NormalizedText&)>;
/// Returns a null function for null. Throws EnvError for a type that is not supported.
Normalizer read_normalizer(const JsonPart& part);

}  // namespace trainctl
