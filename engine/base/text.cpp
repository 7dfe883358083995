// Words and numbers in readable form.
#include "engine/base/text.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace trainctl {

int edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the table: a transposition looks two rows back.
  std::vector<int> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    before.swap(above);
    above.swap(row);
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  const int limit = std::max(2, static_cast<int>(word.size()) / 3);
  int best = limit + 1;
  std::string result;
  for (const std::string& candidate : candidates) {
    const size_t longer = std::max(word.size(), candidate.size()), shorter = std::min(word.size(), candidate.size());
    if (longer - shorter > static_cast<size_t>(limit)) continue;
    const int distance = edit_distance(word, candidate);
    // A candidate that shares less than half of the letters is no guess ("a" for "p", "pbs" for "k8s").
    if (distance < best && 2 * distance <= static_cast<int>(longer)) {
      best = distance;
      result = candidate;
    }
  }
  return result;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string guess = nearest(word, candidates);
  return guess.empty() ? "" : "did you mean '" + guess + "'?";
}

std::string format_bytes(int64_t bytes) {
  const double magnitude = std::abs(static_cast<double>(bytes));
  if (magnitude < 1024) return std::to_string(bytes) + " B";
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  // 1023.95 would be printed as 1024.0 of the smaller unit.
  while (std::abs(value) >= 1023.95 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  char text[48];
  std::snprintf(text, sizeof text, "%.1f %s", value, kUnits[unit]);
  return text;
}

std::string with_commas(int64_t value) {
  std::string digits = std::to_string(value);
  const size_t first = digits.front() == '-' ? 1 : 0;
  for (size_t i = digits.size(); i > first + 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

std::string plural(int64_t count, std::string_view what) {
  return with_commas(count) + " " + std::string(what) + (count == 1 ? "" : "s");
}

std::string join(const std::vector<std::string>& words, std::string_view separator) {
  std::string result;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i) result += separator;
    result += words[i];
  }
  return result;
}

std::string format_list(const std::vector<int64_t>& values) {
  std::string result = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i) result += ", ";
    result += std::to_string(values[i]);
  }
  return result + "]";
}

std::string lower_case(std::string text) {
  for (char& c : text) c = lower_case(c);
  return text;
}

bool glob_match(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, star_text = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_text = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      // The last star takes one more character; earlier ones never need to.
      p = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool is_glob(std::string_view text) { return text.find_first_of("*?") != std::string_view::npos; }

uint64_t stable_hash(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3u;
  }
  return hash;
}

void replace_all(std::string& text, std::string_view what, std::string_view with) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size()))
    text.replace(at, what.size(), with);
}

}  // namespace trainctl
