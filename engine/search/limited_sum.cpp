#include "engine/search/limited_sum.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "engine/search/fold_limited.h"
#include "engine/search/limited_state.h"
#include "engine/search/messages.h"
#include "engine/search/time_prices.h"

namespace trainctl {
namespace {

constexpr double kNoLimitedSum = std::numeric_limits<double>::infinity();
constexpr double kNothing = 1e-9;  // a gain that is none, as a part of the cost
constexpr size_t kMoreStarts = 2;
constexpr double kMuch = 3e-3;  // a gain for which a start is improved once more, as a part of the cost
constexpr int kRoundsOfWhole = 10, kRoundsOfPart = 8;

class LimitedSumSearch {
 public:
  LimitedSumSearch(LimitedTables tables, const LimitedSearch& search)
      : state_(std::move(tables)), search_(search), random_(search.seed), prices_(state_.over().size(), 0) {
    all_.resize(state_.count());
    size_t entries = 0, pairs = 1;
    for (const CostTable& table : state_.tables().tables) {
      if (table.variables.size() < 2) continue;
      entries += table.values.size();
      ++pairs;
    }
    most_sums_ = entries;
    while (least_entries_ < entries / pairs) least_entries_ *= 2;
    std::iota(all_.begin(), all_.end(), 0);
  }

  LimitedSum run() {
    for (most_entries_ = size_t{1} << 24;; most_entries_ /= 4) {
      state_.sum().plan(all_, state_.setting(), most_entries_, random_);
      if (state_.sum().sums() < most_sums_ || most_entries_ < 100) break;
    }
    for (double share_of_last : {1.0, 0.3}) begin(share_of_last);
    if (!choose_start()) return {false, 0, {}, bound_};
    std::vector<int> best = state_.setting();
    double best_cost = state_.cost();
    for (int stale = 0; parts_ < search_.parts && search_.go_on();) {
      const double before = state_.cost();
      improve();
      const double cost = state_.cost();
      stale = cost < before - 1e-5 * std::abs(before) ? 0 : stale + 1;
      if (cost < best_cost) {
        best = state_.setting();
        best_cost = cost;
      }
      if (best_cost <= bound_ + kNothing * std::abs(bound_)) break;
      if (stale < 2 && cost < best_cost + 0.05 * std::abs(best_cost)) continue;
      stale = 0;
      state_.set(best);
      leave_best();
    }
    return {true, best_cost, best, bound_};
  }

 private:
  struct Start {
    std::vector<double> prices;
    std::vector<int> setting;
  };

  /// One more start: prices, and a setting that keeps the limits where one is found.
  void begin(double share_of_last) {
    Messages messages(state_.tables().sizes, state_.sum());
    TimePrices found = time_prices(state_, messages, share_of_last, search_.go_on);
    prices_ = found.prices;
    for (std::vector<int>& setting : found.met) relaxed_.push_back(std::move(setting));
    relax(messages);
    ease();
    if (!found.kept.empty() && (state_.over_limit() || state_.cost() > found.kept_cost)) state_.set(found.kept);
    Start start{std::move(found.prices), state_.setting()};
    starts_.insert(found.bound > bound_ ? starts_.begin() : starts_.end(), std::move(start));
    bound_ = std::max(bound_, found.bound);
  }

  /// Improves each start, and two more at the best prices, for as long as this gains much. Leaves the best of them: a
  /// better start saves more than a longer search from a worse one. leave_best() takes regions from all of them. False:
  /// no setting that keeps the limits was found.
  bool choose_start() {
    const size_t met = relaxed_.size();
    for (size_t more = 0; more < kMoreStarts; ++more) starts_.push_back({starts_[0].prices, relaxed_[random_() % met]});
    Start best;
    double best_cost = kNoLimitedSum;
    for (Start& start : starts_) {
      if (best_cost < kNoLimitedSum && !search_.go_on()) break;
      prices_ = std::move(start.prices);
      state_.set(std::move(start.setting));
      ease();
      if (state_.over_limit() || state_.cost() >= kNever) continue;
      for (double before = kNoLimitedSum; state_.cost() < before - kMuch * std::abs(state_.cost()) && search_.go_on();) {
        before = state_.cost();
        improve();
      }
      relaxed_.push_back(state_.setting());
      if (state_.cost() >= best_cost) continue;
      best_cost = state_.cost();
      best = {prices_, state_.setting()};
    }
    if (best.setting.empty()) return false;
    prices_ = std::move(best.prices);
    state_.set(std::move(best.setting));
    return true;
  }

  /// Settings that are good at the prices, whatever they hold; the last becomes the setting.
  void relax(Messages& messages) {
    state_.price(all_, prices_);
    std::vector<int> setting = state_.setting();
    for (int sweep = 0; sweep < 8; ++sweep) {
      messages.sweep(state_.priced(), setting);
      relaxed_.push_back(setting);
    }
    state_.set(setting);
  }

  /// Solves the whole and parts until nothing is held too much.
  void ease() {
    const std::vector<double> prices = prices_;
    for (int times = 0; times < 40 && state_.over_limit() && search_.go_on(); ++times) {
      solve_whole();
      for (int i = 0; i < 200 && state_.over_limit() && search_.go_on(); ++i) try_part();
    }
    prices_ = prices;
  }

  /// Rounds of the whole, then of parts with twice their work.
  void improve() {
    work_ = 0;
    for (int times = 0; times < 3; ++times) solve_whole();
    for (const int64_t until = 3 * work_; work_ <= until && parts_ < search_.parts && search_.go_on();) try_part();
  }

  /// From the best setting to another that may lead to a better one: a region becomes as it would be at the prices
  /// alone, or as it is in another start.
  void leave_best() {
    const std::vector<int> kept = state_.setting();
    const std::vector<int>& relaxed = relaxed_[random_() % relaxed_.size()];
    const double share = std::exp2(-static_cast<double>(1 + random_() % 8));  // of all
    std::vector<int> setting = kept;
    for (int v : draw_part(std::max<size_t>(1, static_cast<size_t>(share * static_cast<double>(all_.size())))))
      setting[static_cast<size_t>(v)] = relaxed[static_cast<size_t>(v)];
    state_.set(std::move(setting));
    ease();
    if (state_.over_limit() || state_.cost() >= kNever) state_.set(kept);
  }

  void solve_whole() {
    state_.sum().plan(all_, state_.setting(), most_entries_, random_);
    linked_ = state_.sum().left_out();
    solve(state_.sum().planned(), state_.setting(), kRoundsOfWhole, true, -1);
  }

  void try_part() {
    ++parts_;
    const double most = std::log(static_cast<double>(std::min<size_t>(all_.size(), 2000)));
    const double unit = static_cast<double>(random_() >> 11) * 0x1p-53;
    std::vector<int> part =
        draw_part(static_cast<size_t>(std::exp(std::log(4.0) + unit * std::max(0.0, most - std::log(4.0)))));
    const int first = part[0], to = static_cast<int>(random_() % state_.size(first));
    size_t entries = least_entries_ << 2 * (random_() % 4);
    std::vector<int> from = state_.setting();
    if (parts_ % 2 == 0) {
      state_.sum().plan(part, from, entries, random_);
      solve(state_.sum().planned(), from, kRoundsOfPart, false, -1);
      return;
    }
    // One variable takes another value, and those around it what suits it.
    if (to == from[static_cast<size_t>(first)]) return;
    if (random_() % 4 == 0 && all_.size() < 1000) {
      part = all_;
      entries = 262144;
    }
    from[static_cast<size_t>(first)] = to;
    std::erase(part, first);
    state_.sum().plan(part, from, entries, random_);
    part = state_.sum().planned();
    part.push_back(first);
    solve(part, from, kRoundsOfPart, false, first);
  }

  /// Solves what is planned at prices, again and again: dearer where it holds too much, cheaper where there is room.
  /// `part` is what is planned and the variable that is `forced` to its value in `from`, if any.
  void solve(const std::vector<int>& part, const std::vector<int>& from, int rounds, bool whole, int forced) {
    std::vector<double> prices = prices_;
    double best = -kNoLimitedSum, pace = 1;
    int worse = 0;
    for (int round = 0; round < rounds && search_.go_on(); ++round) {
      state_.price(part, prices);
      std::vector<int> next = from;
      state_.sum().solve(state_.priced(), next);
      work_ += static_cast<int64_t>(state_.sum().sums() + 4 * prices.size() + 200 * part.size());
      double change = state_.priced_value(part, next) - state_.priced_value(part, state_.setting());
      for (size_t t = 0; t < prices.size(); ++t)
        if (prices[t] > 0) change += prices[t] * static_cast<double>(state_.over()[t]);
      // No change of the part alone that keeps the limits saves more.
      const double cost = state_.cost(), bound = cost + change;
      if (whole && part.size() == all_.size()) bound_ = std::max(bound_, bound);
      const bool too_much = state_.over_limit();
      if (!too_much && change > -(whole ? 3e-5 : kNothing) * std::abs(cost)) return;
      const std::vector<double> over = state_.over_with(part, next);
      if (bound > best) {
        best = bound;
        worse = 0;
        if (whole && !too_much) prices_ = prices;
      } else if (++worse > 3) {
        pace /= 2;
        worse = 0;
      }
      state_.go_towards(part, next);
      if (forced >= 0 && value_of(state_.setting(), forced) == value_of(from, forced)) return;
      const double square = squares(over, prices);
      if (square == 0) return;
      double gap = state_.cost() - bound;
      if (too_much) gap = std::max(gap, 0.005 * std::max(std::abs(state_.cost()), state_.scale()));
      raise(prices, over, pace * gap / square);
      if (too_much) prices_ = prices;
    }
  }

  static int value_of(const std::vector<int>& setting, int v) { return setting[static_cast<size_t>(v)]; }

  /// About as many variables, in one to three regions. Variables that leave the whole, since they have many neighbours,
  /// are drawn as often as all others.
  std::vector<int> draw_part(size_t count) {
    const size_t regions = 1 + random_() % 3;
    std::vector<int> part;
    std::vector<char> in(all_.size(), 0);
    const auto add = [&](int v) {
      if (in[static_cast<size_t>(v)]) return;
      in[static_cast<size_t>(v)] = 1;
      part.push_back(v);
    };
    for (size_t region = 0; region < regions; ++region) {
      size_t next = part.size();
      const size_t until = std::min(all_.size(), (region + 1) * std::max<size_t>(1, count / regions));
      const std::vector<int>& from = linked_.empty() || random_() % 2 == 0 ? all_ : linked_;
      add(from[random_() % from.size()]);
      for (; next < part.size() && part.size() < until; ++next) {
        std::swap(part[next], part[next + random_() % std::min<size_t>(4, part.size() - next)]);
        for (const PartSum::Neighbour& n : state_.sum().around(part[next]))
          if (part.size() < until) add(n.variable);
      }
    }
    return part;
  }

  LimitedState state_;
  const LimitedSearch& search_;
  std::mt19937_64 random_;
  std::vector<double> prices_;  // of the times, from which parts start
  std::vector<int> all_, linked_;
  std::vector<Start> starts_;
  std::vector<std::vector<int>> relaxed_;  // settings that are good at the prices, and what the starts became
  size_t most_sums_ = 0;                   // of one elimination of the whole: as many as its tables have entries
  size_t most_entries_ = 0;                // of tables while the whole is solved
  size_t least_entries_ = 256;             // of tables while parts are solved: some have more, up to 64 times as many
  int64_t parts_ = 0, work_ = 0;
  double bound_ = -kNoLimitedSum;
};

}  // namespace

LimitedSum limited_sum(const LimitedTables& tables, const LimitedSearch& search) {
  const FoldedTables folded = fold(tables);
  if (!folded.possible) return {false, kNoLimitedSum, {}, kNoLimitedSum};
  LimitedSum sum;
  if (folded.variables.empty())
    sum.found = true;
  else
    sum = LimitedSumSearch(folded.left, search).run();
  sum.bound += folded.constant;
  if (!sum.found) return sum;
  sum.setting = folded.unfold(sum.setting);
  sum.value = sum_within_limits(tables, sum.setting);
  return sum;
}

double sum_within_limits(const LimitedTables& tables, const std::vector<int>& setting) {
  double sum = 0;
  for (const CostTable& table : tables.tables) {
    size_t at = 0;
    for (int v : table.variables)
      at = at * static_cast<size_t>(tables.sizes[static_cast<size_t>(v)]) +
           static_cast<size_t>(setting[static_cast<size_t>(v)]);
    sum += table.values[at];
  }
  std::vector<int64_t> steps(tables.limits.size() + 1, 0);
  for (const Holding& h : tables.holdings) {
    const int64_t amount = h.amounts[static_cast<size_t>(setting[static_cast<size_t>(h.variable)])];
    if (h.first >= h.end) continue;
    steps[static_cast<size_t>(h.first)] += amount;
    steps[static_cast<size_t>(h.end)] -= amount;
  }
  int64_t held = 0;
  for (size_t t = 0; t < tables.limits.size(); ++t)
    if ((held += steps[t]) > tables.limits[t]) return kNoLimitedSum;
  return sum;
}

}  // namespace trainctl
