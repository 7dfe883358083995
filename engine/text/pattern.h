// A pattern of tokenizer.json, and how a text is cut where it matches.
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/text/json_part.h"
#include "engine/text/pieces.h"
#include "engine/text/regex.h"

namespace trainctl {

/// Reads a pattern, {"String": "a"} or {"Regex": "a+"}.
Regex read_pattern(const JsonPart& part);

/// The split behaviors of the package `tokenizers`: where the text of a match goes.
enum class SplitBehavior : uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous };
SplitBehavior read_behavior(const JsonPart& part);

/// A part of a text that matches, or is between matches.
struct Stretch {
  size_t begin = 0, end = 0;
  bool matches = false;
};

/// Cuts a text into stretches, in order and without gaps.
using Cutter = std::function<void(std::string_view text, std::vector<Stretch>& to)>;
Cutter cut_by(Regex regex, bool invert = false);
/// Each character of the kind is a separate match.
Cutter cut_by(std::function<bool(char32_t)> is_match);

/// Cuts each piece of `pieces`. Empty pieces are dropped.
void split(Pieces& pieces, const Cutter& cutter, SplitBehavior behavior);

}  // namespace trainctl
