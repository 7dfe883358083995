// Writes rules that recompute more in some of the repeated blocks of a network, and less in the others.
#include "engine/search/choices/some_blocks.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "engine/base/text.h"

namespace trainctl {
namespace {

/// "0-15,20".
std::string range_list(const std::vector<int64_t>& numbers) {
  std::vector<std::string> ranges;
  for (size_t first = 0; first < numbers.size();) {
    size_t end = first + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    const std::string from = std::to_string(numbers[first]);
    ranges.push_back(end - first == 1 ? from : from + "-" + std::to_string(numbers[end - 1]));
    first = end;
  }
  return join(ranges, ",");
}

/// The number in the name of a repeated layer: 3 of "h.3.fc" with the prefix "h.".
int64_t number_after(const std::string& name, const std::string& prefix) {
  return std::stoll(name.substr(prefix.size()));
}

}  // namespace

int num_blocks(const Repeats& repeats) {
  int count = 0;
  for (int blocks : repeats.blocks) count += blocks > 1 ? blocks : 0;
  return count;
}

Recompute recompute_of_some(const std::vector<LayerSpec>& network, const Repeats& repeats, const Recompute& less,
                            const Recompute& more, int count, bool spread) {
  const int all = num_blocks(repeats);
  const auto recomputes_more = [&](int block) {  // by the place of a block among those of all runs
    if (!spread) return block < count;
    return (block + 1) * count / all > block * count / all;
  };
  std::vector<int> first_of_run(repeats.blocks.size(), 0);
  for (size_t run = 1; run < first_of_run.size(); ++run)
    first_of_run[run] = first_of_run[run - 1] + (repeats.blocks[run - 1] > 1 ? repeats.blocks[run - 1] : 0);
  std::map<std::string, std::vector<int64_t>> numbers;  // by pattern: blocks that recompute more
  std::map<std::string, std::string> prefixes;
  for (size_t l = 0; l < network.size(); ++l) {
    const BlockPlace& place = repeats.places[l];
    if (place.run < 0 || !recomputes_more(first_of_run[static_cast<size_t>(place.run)] + place.block)) continue;
    const std::string& prefix = repeats.prefixes[static_cast<size_t>(place.run)];
    numbers[place.pattern].push_back(number_after(network[l].name, prefix));
    prefixes[place.pattern] = prefix;
  }
  Recompute rules = less;
  for (const RecomputeRule& rule : more) {
    const bool is_in_all = std::any_of(less.begin(), less.end(),
                                       [&](const RecomputeRule& known) { return known.pattern == rule.pattern; });
    const auto of_some = numbers.find(rule.pattern);
    if (is_in_all || of_some == numbers.end()) continue;
    const std::string& prefix = prefixes[rule.pattern];  // the pattern is the prefix, a star and the rest
    const std::string list = range_list(of_some->second), rest = rule.pattern.substr(prefix.size() + 1);
    rules.push_back({prefix + (of_some->second.size() == 1 ? list : "{" + list + "}") + rest, ""});
  }
  return rules;
}

}  // namespace trainctl
