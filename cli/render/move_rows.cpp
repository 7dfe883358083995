// The redistributions and transfers of a plan as rows of a table, with equal ones merged.
#include "cli/render/move_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/render/fold.h"
#include "engine/base/error.h"
#include "engine/base/ranges.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;
using Groups = std::vector<std::vector<int>>;

std::string ranges(const std::vector<int>& numbers) {
  return number_ranges(std::vector<int64_t>(numbers.begin(), numbers.end()));
}

/// The groups with these ids (indices into the report's `groups`), sorted by first rank.
Groups groups_of(const Json& report, const Json& ids) {
  Groups all;
  for (const Json& id : ids) {
    const Json& kind = report["groups"][id.get<size_t>()];
    const std::vector<int> first = numbers_of(kind["ranks"].get<std::string>());
    for (int start : numbers_of(kind["starts"].get<std::string>())) {
      all.push_back(first);
      for (int& rank : all.back()) rank += start - first.front();
    }
  }
  std::sort(all.begin(), all.end());
  return all;
}

/// Senders and receivers in order: "0-7 to 8-15".
std::string pairs_text(const Groups& pairs) {
  std::vector<int> from, to;
  for (const auto& pair : pairs) {
    from.push_back(pair.front());
    to.push_back(pair.back());
  }
  return ranges(from) + " to " + ranges(to);
}

struct Move {
  int stage = 0;
  std::string name;
  size_t groups = 0;  ///< index of the distinct lists of groups, relative to their stage
};

/// Groups equal rows, in the report's order.
struct Alike {
  std::string phase, kind;
  int64_t bytes = 0;
  std::vector<Move> moves;
};

class Moves {
 public:
  explicit Moves(const Json& report) : report_(report) {
    stage_size_ = report["ranks"].get<int>() / report["stages"].get<int>();
    for (const Json& row : report["redistributions"]) add(row);
  }

  std::vector<std::vector<std::string>> rows() const {
    std::vector<std::vector<std::string>> rows;
    for (const Alike& alike : alike_) {
      if (add_row(alike, rows)) continue;
      std::map<int, Alike> by_stage;  // no pattern, or stages out of order: each stage separately
      for (const Move& move : alike.moves) {
        Alike& of_stage = by_stage[move.stage];
        if (of_stage.moves.empty()) of_stage = {alike.phase, alike.kind, alike.bytes, {}};
        of_stage.moves.push_back(move);
      }
      for (const auto& [stage, of_stage] : by_stage) add_each(of_stage, rows);
    }
    return rows;
  }

 private:
  void add(const Json& row) {
    const int stage = row["stage"];
    const std::string name = row["name"].get<std::string>();
    Groups relative = known_groups(row["groups"]);
    for (auto& group : relative)
      for (int& rank : group) rank -= stage * stage_size_;
    const auto found = std::find(groups_.begin(), groups_.end(), relative);
    const auto groups = static_cast<size_t>(found - groups_.begin());
    if (found == groups_.end()) groups_.push_back(std::move(relative));
    std::string letters;  // the name without its numbers
    for (char c : name)
      if (c < '0' || c > '9') letters += c;
    std::string key = fmt::format("{} {} {} {} {}", row["phase"].get<std::string>(), row["kind"].get<std::string>(),
                                  row["bytes"].get<int64_t>(), groups, letters);
    const auto [entry, is_new] = places_.try_emplace(std::move(key), alike_.size());
    if (is_new) alike_.push_back({row["phase"], row["kind"], row["bytes"], {}});
    alike_[entry->second].moves.push_back({stage, name, groups});
  }

  const Groups& known_groups(const Json& ids) {
    const auto [entry, is_new] = by_ids_.try_emplace(ids.dump());
    if (is_new) entry->second = groups_of(report_, ids);
    return entry->second;
  }

  /// Adds one row if the names form a pattern with numbers that ascend within a stage; otherwise returns false.
  bool add_row(const Alike& alike, std::vector<std::vector<std::string>>& rows) const {
    std::vector<Move> moves = alike.moves;
    std::stable_sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) {
      return std::pair(a.stage, numbers_in(a.name)) < std::pair(b.stage, numbers_in(b.name));
    });
    std::vector<std::string> names;
    for (const Move& move : moves) names.push_back(move.name);
    const std::optional<std::string> pattern = name_pattern(names);
    if (!pattern) return false;
    std::vector<int64_t> stages, counts;
    for (const Move& move : moves) {
      if (stages.empty() || stages.back() != move.stage) {
        stages.push_back(move.stage);
        counts.push_back(0);
      }
      ++counts.back();
    }
    rows.push_back({number_ranges(stages), alike.phase, alike.kind, *pattern, times(moves.size(), counts),
                    with_commas(alike.bytes), places(alike.kind, moves.front().groups, stages)});
    return true;
  }

  /// Adds runs of names that form a pattern, at worst one by one.
  void add_each(const Alike& alike, std::vector<std::vector<std::string>>& rows) const {
    if (alike.moves.size() > 1 && add_row(alike, rows)) return;
    for (const Move& move : alike.moves) {
      check(add_row({alike.phase, alike.kind, alike.bytes, {move}}, rows), "one name is a pattern: " + move.name);
    }
  }

  static std::vector<int64_t> numbers_in(const std::string& name) {
    NumberedTexts texts;
    texts.add(name);
    return texts.numbers(0);
  }

  /// "12", "48 (6 per stage)", "47 (5+6+6+…)".
  static std::string times(size_t all, const std::vector<int64_t>& counts) {
    std::string text = std::to_string(all);
    if (counts.size() < 2 || counts.size() == all) return text;
    const bool even = std::all_of(counts.begin(), counts.end(), [&](int64_t n) { return n == counts.front(); });
    if (even) return text + fmt::format(" ({} per stage)", counts.front());
    std::vector<std::string> words;
    for (int64_t n : counts) words.push_back(std::to_string(n));
    return text + " (" + join(words, "+") + ")";
  }

  /// The groups of all these stages; for sends "0-7 to 8-15", and with several stages also those of the last. In a ring
  /// each rank sends to another one: "within {0-3}".
  std::string places(const std::string& kind, size_t relative, const std::vector<int64_t>& stages) const {
    const Groups& first_groups = groups_[relative];
    const bool is_ring = kind == "send" && std::any_of(first_groups.begin(), first_groups.end(),
                                                       [](const auto& group) { return group.size() > 2; });
    if (kind == "send" && !is_ring) {
      const std::string first = pairs_text(groups_in(relative, stages.front()));
      if (stages.size() == 1) return first;
      return first + (stages.size() > 2 ? " … " : ", ") + pairs_text(groups_in(relative, stages.back()));
    }
    Groups all;
    for (int64_t stage : stages)
      for (auto& group : groups_in(relative, stage)) all.push_back(std::move(group));
    return (is_ring ? "within " : "") + groups_text(all);
  }

  Groups groups_in(size_t relative, int64_t stage) const {
    Groups groups = groups_[relative];
    for (auto& group : groups)
      for (int& rank : group) rank += static_cast<int>(stage) * stage_size_;
    return groups;
  }

  const Json& report_;
  int stage_size_ = 1;
  std::vector<Groups> groups_;
  std::map<std::string, Groups> by_ids_;
  std::map<std::string, size_t> places_;
  std::vector<Alike> alike_;
};

}  // namespace

std::string groups_text(const std::vector<std::vector<int>>& groups) {
  constexpr size_t kShown = 4, kFirst = 2;
  if (std::all_of(groups.begin(), groups.end(), [](const auto& group) { return group.size() == 1; })) {
    std::vector<int> ranks;
    for (const auto& group : groups) ranks.push_back(group.front());
    return (groups.size() > 1 ? "each of " : "") + ranges(ranks);
  }
  std::vector<std::string> words;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups.size() <= kShown || g < kFirst || g + 1 == groups.size()) words.push_back("{" + ranges(groups[g]) + "}");
    if (groups.size() > kShown && g == kFirst) words.emplace_back("…");
  }
  return join(words, " ") + (groups.size() > kShown ? fmt::format(", {} groups", groups.size()) : "");
}

std::vector<std::vector<std::string>> folded_moves(const Json& report) { return Moves(report).rows(); }

}  // namespace trainctl
