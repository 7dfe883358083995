// A pattern of tokenizer.json, and how a text is cut where it matches.
#include "engine/text/pattern.h"

#include <algorithm>
#include <utility>

#include "engine/text/unicode.h"

namespace trainctl {
namespace {

/// Joins each match with the stretch before it, unless that stretch is itself a match.
void merge_with_previous(std::vector<Stretch>& stretches) {
  std::vector<Stretch> merged;
  bool previous = false;
  for (const Stretch& s : stretches) {
    if (s.matches && !previous && !merged.empty())
      merged.back().end = s.end;
    else
      merged.push_back(s);
    previous = s.matches;
  }
  stretches = std::move(merged);
}

void merge_with_next(std::vector<Stretch>& stretches) {
  std::vector<Stretch> merged;
  bool previous = false;
  for (auto s = stretches.rbegin(); s != stretches.rend(); ++s) {
    if (s->matches && !previous && !merged.empty())
      merged.back().begin = s->begin;
    else
      merged.push_back(*s);
    previous = s->matches;
  }
  std::reverse(merged.begin(), merged.end());
  stretches = std::move(merged);
}

void merge_alike(std::vector<Stretch>& stretches) {
  std::vector<Stretch> merged;
  for (const Stretch& s : stretches) {
    if (!merged.empty() && merged.back().matches == s.matches)
      merged.back().end = s.end;
    else
      merged.push_back(s);
  }
  stretches = std::move(merged);
}

}  // namespace

Regex read_pattern(const JsonPart& part) {
  try {
    if (part.has("String")) return Regex(escape_regex(part.at("String").text()));
    if (part.has("Regex")) return Regex(part.at("Regex").text());
  } catch (const std::exception& error) {
    part.fail(error.what());
  }
  part.fail("expected {\"String\": …} or {\"Regex\": …}");
}

SplitBehavior read_behavior(const JsonPart& part) {
  constexpr std::pair<std::string_view, SplitBehavior> kNames[] = {
      {"Removed", SplitBehavior::removed},
      {"Isolated", SplitBehavior::isolated},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous}};
  const std::string name = part.text();
  for (const auto& [known, behavior] : kNames)
    if (name == known) return behavior;
  part.fail("'" + name + "' is not supported");
}

Cutter cut_by(Regex regex, bool invert) {
  return [regex = std::move(regex), invert](std::string_view text, std::vector<Stretch>& to) {
    size_t at = 0, from = 0, last = std::string_view::npos;
    for (Regex::Match match; from <= text.size() && regex.find(text, from, match);) {
      if (match.begin == match.end && match.end == last) {  // an empty match at the end of the last one does not count
        from += from < text.size() ? code_point(text, from).bytes : 1;
        continue;
      }
      if (match.begin > at) to.push_back({at, match.begin, invert});
      to.push_back({match.begin, match.end, !invert});
      at = from = last = match.end;
    }
    if (at < text.size()) to.push_back({at, text.size(), invert});
  };
}

Cutter cut_by(std::function<bool(char32_t)> is_match) {
  return [is_match = std::move(is_match)](std::string_view text, std::vector<Stretch>& to) {
    size_t begin = 0;
    for (size_t at = 0; at < text.size();) {
      const CodePoint c = code_point(text, at);
      if (is_match(c.value)) {
        if (at > begin) to.push_back({begin, at, false});
        to.push_back({at, at + c.bytes, true});
        begin = at + c.bytes;
      }
      at += c.bytes;
    }
    if (begin < text.size()) to.push_back({begin, text.size(), false});
  };
}

void split(Pieces& pieces, const Cutter& cutter, SplitBehavior behavior) {
  std::vector<TextPiece> result;
  std::vector<Stretch> stretches;
  for (const TextPiece& piece : pieces.pieces) {
    stretches.clear();
    cutter(pieces.of(piece), stretches);
    if (behavior == SplitBehavior::merged_with_previous) merge_with_previous(stretches);
    if (behavior == SplitBehavior::merged_with_next) merge_with_next(stretches);
    if (behavior == SplitBehavior::contiguous) merge_alike(stretches);
    for (const Stretch& s : stretches) {
      if (s.begin == s.end || (behavior == SplitBehavior::removed && s.matches)) continue;
      result.push_back({piece.begin + s.begin, piece.begin + s.end,
                        piece.is_first && piece.begin + s.begin < std::max<size_t>(pieces.start_bytes, 1)});
    }
  }
  pieces.pieces = std::move(result);
}

}  // namespace trainctl
