// Patterns that select layers and parameters by name.
#include "engine/base/name_pattern.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>

namespace trainctl {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// The number that the whole text is.
std::optional<int64_t> whole_number(std::string_view text) {
  if (text.empty() || !is_digit(text.front())) return std::nullopt;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number =
      error == std::errc() && end == text.data() + text.size() && (text.size() == 1 || text.front() != '0');
  return is_number ? std::optional(number) : std::nullopt;
}

/// `range`: "20", "0-15" or "0-30:2".
bool in_range(std::string_view range, int64_t number) {
  const size_t colon = std::min(range.find(':'), range.size());
  const std::string_view ends = range.substr(0, colon);
  const size_t dash = std::min(ends.find('-'), ends.size());
  const auto first = whole_number(ends.substr(0, dash));
  const auto last = dash == ends.size() ? first : whole_number(ends.substr(dash + 1));
  const auto step = colon == range.size() ? std::optional<int64_t>(1) : whole_number(range.substr(colon + 1));
  return first && last && step && *step > 0 && *first <= number && number <= *last && (number - *first) % *step == 0;
}

/// `ranges`: "0-15,20".
bool in_ranges(std::string_view ranges, int64_t number) {
  while (!ranges.empty()) {
    const size_t end = std::min(ranges.find(','), ranges.size());
    if (in_range(ranges.substr(0, end), number)) return true;
    ranges.remove_prefix(std::min(end + 1, ranges.size()));
  }
  return false;
}

/// Matches pattern[p, …) with name[t, …).
bool matches_from(std::string_view pattern, size_t p, std::string_view name, size_t t) {
  for (; p < pattern.size(); ++p) {
    if (pattern[p] == '*') {
      for (size_t rest = t; rest <= name.size(); ++rest)
        if (matches_from(pattern, p + 1, name, rest)) return true;
      return false;
    }
    const size_t close = pattern[p] == '{' ? pattern.find('}', p) : std::string_view::npos;
    if (close != std::string_view::npos) {
      size_t end = t;
      while (end < name.size() && is_digit(name[end])) ++end;
      if (end == t || (t > 0 && is_digit(name[t - 1]))) return false;
      const auto number = whole_number(name.substr(t, end - t));
      if (!number || !in_ranges(pattern.substr(p + 1, close - p - 1), *number)) return false;
      p = close;
      t = end;
    } else if (t < name.size() && (pattern[p] == '?' || pattern[p] == name[t])) {
      ++t;
    } else {
      return false;
    }
  }
  return t == name.size();
}

}  // namespace

bool name_matches(std::string_view pattern, std::string_view name) { return matches_from(pattern, 0, name, 0); }

bool is_name_pattern(std::string_view text) { return text.find_first_of("*?{") != std::string_view::npos; }

}  // namespace trainctl
