// Slurm's lists of nodes: "a[01-03,7],b" is a01, a02, a03, a7, b.
#include "launcher/clusters/node_list.h"

#include <algorithm>
#include <charconv>

namespace trainctl::clusters {
namespace {

constexpr size_t kMostNodes = 65'536;
constexpr size_t kMostDigits = 9;

using Names = std::vector<std::string>;

std::optional<int> number_of(std::string_view digits) {
  int value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.size() > kMostDigits || error != std::errc() || end != digits.data() + digits.size() || value < 0)
    return std::nullopt;
  return value;
}

/// Parses the ranges in brackets: "07-09,12".
std::optional<Names> ranges(std::string_view text) {
  Names numbers;
  for (size_t at = 0; at <= text.size();) {
    const std::string_view range = text.substr(at, std::min(text.find(',', at), text.size()) - at);
    const size_t dash = range.find('-');
    const std::string_view first = range.substr(0, dash);
    const std::string_view last = dash == std::string_view::npos ? first : range.substr(dash + 1);
    const auto from = number_of(first), to = number_of(last);
    if (!from || !to || *to < *from || static_cast<size_t>(*to - *from) >= kMostNodes) return std::nullopt;
    for (int number = *from; number <= *to; ++number) {
      std::string digits = std::to_string(number);
      if (digits.size() < first.size()) digits.insert(0, first.size() - digits.size(), '0');
      numbers.push_back(std::move(digits));
    }
    at += range.size() + 1;
  }
  if (numbers.size() > kMostNodes) return std::nullopt;
  return numbers;
}

std::optional<Names> combine(const Names& begins, const Names& ends) {
  if (begins.size() * ends.size() > kMostNodes) return std::nullopt;
  Names all;
  for (const std::string& begin : begins)
    for (const std::string& end : ends) all.push_back(begin + end);
  return all;
}

/// One item, without commas outside brackets.
std::optional<Names> expand_item(std::string_view item) {
  Names names{""};
  while (!item.empty()) {
    const bool is_range = item.front() == '[';
    const size_t end = item.find(is_range ? ']' : '[');
    if (is_range && end == std::string_view::npos) return std::nullopt;
    const std::string_view part = is_range ? item.substr(1, end - 1) : item.substr(0, end);
    const auto ends = is_range ? ranges(part) : std::optional(Names{std::string(part)});
    if (!ends || part.find(']') != std::string_view::npos) return std::nullopt;
    auto more = combine(names, *ends);
    if (!more) return std::nullopt;
    names = std::move(*more);
    item.remove_prefix(std::min(part.size() + (is_range ? 2 : 0), item.size()));
  }
  return names;
}

}  // namespace

std::optional<Names> expand_nodes(std::string_view list) {
  Names nodes;
  while (!list.empty()) {
    size_t end = 0;
    for (bool inside = false; end < list.size() && (inside || list[end] != ','); ++end)
      inside = list[end] == '[' || (inside && list[end] != ']');
    const auto names = expand_item(list.substr(0, end));
    if (end == 0 || !names || nodes.size() + names->size() > kMostNodes) return std::nullopt;
    nodes.insert(nodes.end(), names->begin(), names->end());
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  if (nodes.empty()) return std::nullopt;
  return nodes;
}

}  // namespace trainctl::clusters
