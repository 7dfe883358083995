// Names with holes: "h.{i}.attn.c_attn.{w}".
#include "engine/train/checkpoint/name_pattern.h"

#include <algorithm>
#include <charconv>

#include "engine/base/error.h"

namespace trainctl {
namespace {

constexpr std::string_view kDigits = "0123456789";

std::optional<int64_t> parse_count(std::string_view text) {
  int64_t number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_plain = text == "0" || !text.starts_with('0');
  if (text.empty() || failed != std::errc{} || end != text.data() + text.size() || number < 0 || !is_plain) return {};
  return number;
}

bool is_hole_name(std::string_view name) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !name.empty() && is_letter(name[0]) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return is_letter(c) || kDigits.find(c) != kDigits.npos; });
}

}  // namespace

NamePattern::NamePattern(const NameMapFile::Text& text, Side side, const std::vector<NameMapFile::Words>& words,
                         const std::string& path)
    : text_(text), side_(side) {
  const auto fail = [&](const std::string& message) {
    throw SpecError(text.pos, path, "'" + text.text + "': " + message,
                    "{i} stands for a number, {i+1} for the next number, and {w} for one of `words: {w: […]}`");
  };
  std::string_view rest = text.text;
  while (true) {
    Part part;
    const size_t open = std::min(rest.find('{'), rest.size());
    part.literal = rest.substr(0, open);
    if (part.literal.find('}') != std::string::npos) fail("'}' has no opening '{'");
    rest.remove_prefix(open);
    if (!rest.empty()) {
      const size_t close = rest.find('}');
      if (close == std::string_view::npos) fail("'{' is never closed");
      std::string_view inside = rest.substr(1, close - 1);
      if (const size_t plus = inside.find('+'); plus != std::string_view::npos) {
        const auto number = parse_count(inside.substr(plus + 1));
        if (!number) fail("'{" + std::string(inside) + "}' does not add a number");
        part.plus = *number;
        inside = inside.substr(0, plus);
      }
      if (!is_hole_name(inside)) fail("'{" + std::string(inside) + "}' is not a valid placeholder");
      part.hole = inside;
      for (const NameMapFile::Words& list : words)
        if (list.name.text == part.hole) part.words = &list.words;
      if (part.words != nullptr && part.plus != 0)
        fail("'" + part.hole + "' stands for words, so no number can be added to it");
      rest.remove_prefix(close + 1);
    }
    const bool ends = part.hole.empty();
    parts_.push_back(std::move(part));
    if (ends) return;
  }
}

std::set<std::string> NamePattern::holes() const {
  std::set<std::string> names;
  for (const Part& part : parts_)
    if (!part.hole.empty()) names.insert(part.hole);
  return names;
}

const std::string& NamePattern::word(const Part& part, size_t index) const {
  const auto& [ours, theirs] = (*part.words)[index];
  return side_ == Side::ours ? ours : theirs;
}

std::optional<Holes> NamePattern::match(std::string_view name) const {
  Holes holes;
  if (!match_from(0, name, holes)) return {};
  return holes;
}

bool NamePattern::match_from(size_t index, std::string_view rest, Holes& holes) const {
  const Part& part = parts_[index];
  if (!rest.starts_with(part.literal)) return false;
  rest.remove_prefix(part.literal.size());
  if (part.hole.empty()) return rest.empty();
  const Holes before = holes;
  const auto continues = [&](int64_t value, size_t length) {
    const auto [at, is_first] = holes.try_emplace(part.hole, value);
    if (at->second == value && match_from(index + 1, rest.substr(length), holes)) return true;
    holes = before;
    return false;
  };
  if (part.words != nullptr) {
    for (size_t i = 0; i < part.words->size(); ++i) {
      const std::string& candidate = word(part, i);
      if (rest.starts_with(candidate) && continues(static_cast<int64_t>(i), candidate.size())) return true;
    }
    return false;
  }
  const size_t length = std::min(rest.find_first_not_of(kDigits), rest.size());
  const std::optional<int64_t> number = parse_count(rest.substr(0, length));
  return number && *number >= part.plus && continues(*number - part.plus, length);
}

std::string NamePattern::fill(const Holes& holes) const {
  std::string name;
  for (const Part& part : parts_) {
    name += part.literal;
    if (part.hole.empty()) continue;
    const auto value = holes.find(part.hole);
    check(value != holes.end(), "all placeholders of a pattern must have values");
    name += part.words != nullptr ? word(part, static_cast<size_t>(value->second))
                                  : std::to_string(value->second + part.plus);
  }
  return name;
}

void NamePattern::drop_prefix(std::string_view prefix) {
  std::string& first = parts_.front().literal;
  if (first.starts_with(prefix)) first.erase(0, prefix.size());
}

}  // namespace trainctl
