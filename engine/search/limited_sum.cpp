#include "engine/search/limited_sum.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "engine/base/error.h"
#include "engine/search/fold_limited.h"
#include "engine/search/messages.h"
#include "engine/search/part_sum.h"
#include "engine/search/peaks.h"

namespace trainctl {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kNever = 1e15;    // stands for infinite: sums of finite costs are smaller
constexpr double kNothing = 1e-9;  // a gain that is none, as a part of the cost

struct Held {
  int first, end;
  std::vector<double> amounts;
};

/// A change of connected variables, which costs what it costs whatever the other changes are.
struct Change {
  std::vector<int> variables;
  double cost = 0;
  double priced = 0;
};

class Search {
 public:
  Search(LimitedTables tables, const LimitedSearch& search)
      : tables_(finite(std::move(tables))),
        search_(search),
        random_(search.seed),
        sum_(tables_.sizes, tables_.tables),
        held_(tables_.sizes.size()),
        setting_(tables_.sizes.size(), 0),
        mark_(tables_.sizes.size(), 0),
        over_(tables_.limits.size()),
        prices_(tables_.limits.size(), 0),
        peaks_({}) {
    alone_.assign(sum_.places(), 0);
    for (const CostTable& table : tables_.tables)
      if (table.variables.size() == 1)
        for (size_t x = 0; x < table.values.size(); ++x) alone_[sum_.place(table.variables[0]) + x] += table.values[x];
    for (const CostTable& table : tables_.tables)
      for (double value : table.values)
        if (value < kNever) scale_ = std::max(scale_, std::abs(value));
    scale_ = scale_ == 0 ? 1 : 1e-6 * scale_;
    for (const Holding& h : tables_.holdings)
      held_[static_cast<size_t>(h.variable)].push_back({h.first, h.end, {h.amounts.begin(), h.amounts.end()}});
    all_.resize(tables_.sizes.size());
    std::iota(all_.begin(), all_.end(), 0);
  }

  LimitedSum run() {
    size_t entries = size_t{1} << 24;
    for (;; entries /= 4) {
      sum_.plan(all_, setting_, entries, random_);
      if (sum_.sums() < 20'000'000 || entries < 100) break;
    }
    most_entries_ = entries;
    begin();
    if (peaks_.most() > 0 || cost_ >= kNever) return {false, 0, {}, bound_};
    std::vector<int> best = setting_;
    double best_cost = cost_;
    for (int stale = 0; parts_ < search_.parts && search_.go_on();) {
      const double before = cost_;
      improve();
      stale = cost_ < before - 1e-5 * std::abs(before) ? 0 : stale + 1;
      if (cost_ < best_cost) {
        best = setting_;
        best_cost = cost_;
      }
      if (best_cost <= bound_ + kNothing * std::abs(bound_)) break;
      if (stale < 2 && cost_ < best_cost + 0.05 * std::abs(best_cost)) continue;
      stale = 0;
      setting_ = best;
      leave_best();
    }
    return {true, best_cost, best, bound_};
  }

 private:
  static LimitedTables finite(LimitedTables tables) {
    for (CostTable& table : tables.tables)
      for (double& value : table.values)
        if (!(value < kNever)) value = kNever;
    return tables;
  }

  size_t value_at(int v, const std::vector<int>& setting) const {
    return static_cast<size_t>(setting[static_cast<size_t>(v)]);
  }
  size_t size(int v) const { return static_cast<size_t>(tables_.sizes[static_cast<size_t>(v)]); }
  const std::vector<Held>& held(int v) const { return held_[static_cast<size_t>(v)]; }

  double cost_of(const std::vector<int>& setting) const {
    double cost = 0;
    for (const CostTable& table : tables_.tables) {
      size_t at = 0;
      for (int v : table.variables) at = at * size(v) + value_at(v, setting);
      cost += table.values[at];
    }
    return cost;
  }

  /// Sets everything that follows from the setting.
  void renew() {
    cost_ = cost_of(setting_);
    std::vector<int64_t> steps(over_.size() + 1, 0);
    for (int v : all_)
      for (const Held& h : held(v)) {
        const auto amount = static_cast<int64_t>(h.amounts[value_at(v, setting_)]);
        steps[static_cast<size_t>(h.first)] += amount;
        steps[static_cast<size_t>(h.end)] -= amount;
      }
    int64_t sum = 0;
    for (size_t t = 0; t < over_.size(); ++t) over_[t] = (sum += steps[t]) - tables_.limits[t];
    peaks_ = Peaks(over_);
  }

  /// Costs alone, with what is held at these prices, of some variables.
  void price(const std::vector<int>& variables, const std::vector<double>& prices) {
    price_up_to_.resize(prices.size() + 1);
    price_up_to_[0] = 0;
    for (size_t t = 0; t < prices.size(); ++t) price_up_to_[t + 1] = price_up_to_[t] + prices[t];
    priced_.resize(alone_.size());
    for (int v : variables) {
      double* to = &priced_[sum_.place(v)];
      std::copy_n(&alone_[sum_.place(v)], size(v), to);
      for (const Held& h : held(v)) {
        const double each = price_up_to_[static_cast<size_t>(h.end)] - price_up_to_[static_cast<size_t>(h.first)];
        if (each == 0) continue;
        for (size_t x = 0; x < h.amounts.size(); ++x) to[x] += each * h.amounts[x];
      }
    }
  }

  /// What the setting of the planned part costs at the prices of price().
  double priced_value(const std::vector<int>& part, const std::vector<int>& setting) {
    ++stamp_;
    double value = 0;
    for (int v : part) {
      const size_t x = value_at(v, setting);
      value += priced_[sum_.place(v) + x];
      mark_[static_cast<size_t>(v)] = stamp_;
      for (const PartSum::Neighbour& n : sum_.around(v))
        if (mark_[static_cast<size_t>(n.variable)] != stamp_)
          value += n.values[value_at(n.variable, setting) * size(v) + x];
    }
    return value;
  }

  /// How much more than the limits another setting holds at each time.
  void over_of(const std::vector<int>& part, const std::vector<int>& setting, std::vector<double>& over) {
    steps_.assign(over_.size() + 1, 0);
    for (int v : part) {
      const size_t before = value_at(v, setting_), after = value_at(v, setting);
      if (before == after) continue;
      for (const Held& h : held(v)) {
        const double more = h.amounts[after] - h.amounts[before];
        steps_[static_cast<size_t>(h.first)] += more;
        steps_[static_cast<size_t>(h.end)] -= more;
      }
    }
    over.resize(over_.size());
    double sum = 0;
    for (size_t t = 0; t < over_.size(); ++t) over[t] = static_cast<double>(over_[t]) + (sum += steps_[t]);
  }

  std::vector<Change> changes(const std::vector<int>& part, const std::vector<int>& setting) {
    std::vector<Change> all;
    ++stamp_;
    const auto changed = [&](int v) { return setting_[static_cast<size_t>(v)] != setting[static_cast<size_t>(v)]; };
    for (int first : part) {
      if (mark_[static_cast<size_t>(first)] == stamp_ || !changed(first)) continue;
      Change change;
      change.variables.push_back(first);
      mark_[static_cast<size_t>(first)] = stamp_;
      for (size_t i = 0; i < change.variables.size(); ++i) {
        const int v = change.variables[i];
        const size_t before = value_at(v, setting_), after = value_at(v, setting);
        change.cost += alone_[sum_.place(v) + after] - alone_[sum_.place(v) + before];
        change.priced += priced_[sum_.place(v) + after] - priced_[sum_.place(v) + before];
        for (const PartSum::Neighbour& n : sum_.around(v)) {
          const auto w = static_cast<size_t>(n.variable);
          const double more = n.values[value_at(n.variable, setting) * size(v) + after] -
                              n.values[value_at(n.variable, setting_) * size(v) + before];
          const double share = changed(n.variable) ? more / 2 : more;  // counted from both of its variables
          change.cost += share;
          change.priced += share;
          if (mark_[w] != stamp_ && changed(n.variable)) {
            mark_[w] = stamp_;
            change.variables.push_back(n.variable);
          }
        }
      }
      all.push_back(std::move(change));
    }
    return all;
  }

  /// Adds a change to what is held, or takes it away.
  void hold(const Change& change, const std::vector<int>& setting, bool take_away) {
    for (int v : change.variables) {
      const size_t before = value_at(v, setting_), after = value_at(v, setting);
      for (const Held& h : held(v)) {
        const auto more = static_cast<int64_t>(h.amounts[after] - h.amounts[before]);
        peaks_.add(h.first, h.end, take_away ? -more : more);
      }
    }
  }

  bool hold_if_fits(const Change& change, const std::vector<int>& setting) {
    hold(change, setting, false);
    if (peaks_.most() <= 0) return true;
    hold(change, setting, true);
    return false;
  }

  /// Takes those changes towards `setting` that together keep the limits and cost least, as far as one pass finds them.
  bool go_towards(const std::vector<int>& part, const std::vector<int>& setting) {
    std::vector<Change> all = changes(part, setting);
    if (all.empty()) return false;
    std::sort(all.begin(), all.end(), [](const Change& a, const Change& b) { return a.priced < b.priced; });
    std::vector<char> taken(all.size(), 0);
    double cost = 0;
    const auto take = [&](size_t i) {
      taken[i] = hold_if_fits(all[i], setting);
      if (taken[i]) cost += all[i].cost;
      return taken[i] != 0;
    };
    if (peaks_.most() > 0) return settle(all, ease(all, setting), setting);
    bool refused = false;
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i].cost <= 0) refused = !take(i) || refused;
    if (refused) {
      // What costs more may hold less, and make room for what costs less.
      const double before = cost;
      const std::vector<char> taken_before = taken;
      std::vector<size_t> dear;
      for (size_t i = 0; i < all.size(); ++i)
        if (all[i].cost > 0 && take(i)) dear.push_back(i);
      for (size_t i = 0; i < all.size(); ++i)
        if (!taken[i] && all[i].cost <= 0) take(i);
      std::sort(dear.begin(), dear.end(), [&](size_t a, size_t b) { return all[a].cost > all[b].cost; });
      for (size_t i : dear) {
        hold(all[i], setting, true);
        if (peaks_.most() > 0) {
          hold(all[i], setting, false);
          continue;
        }
        taken[i] = 0;
        cost -= all[i].cost;
      }
      if (cost > before) {
        for (size_t i = 0; i < all.size(); ++i)
          if (taken[i] && !taken_before[i]) hold(all[i], setting, true);
        for (size_t i = 0; i < all.size(); ++i)
          if (!taken[i] && taken_before[i]) hold(all[i], setting, false);
        taken = taken_before;
        cost = before;
      }
    }
    return settle(all, taken, setting);
  }

  /// Where too much is held: what is worth it at the prices and makes the largest excess no larger.
  std::vector<char> ease(const std::vector<Change>& all, const std::vector<int>& setting) {
    std::vector<char> taken(all.size(), 0);
    int64_t most = peaks_.most();
    for (size_t i = 0; i < all.size() && all[i].priced < 0; ++i) {
      if (most <= 0 && all[i].cost > 0) continue;
      hold(all[i], setting, false);
      taken[i] = peaks_.most() <= std::max<int64_t>(most, 0);
      if (taken[i])
        most = peaks_.most();
      else
        hold(all[i], setting, true);
    }
    return taken;
  }

  /// Makes the taken changes, which peaks_ has already.
  bool settle(const std::vector<Change>& all, const std::vector<char>& taken, const std::vector<int>& setting) {
    bool any = false;
    for (size_t i = 0; i < all.size(); ++i) {
      if (!taken[i]) continue;
      any = true;
      cost_ += all[i].cost;
      for (int v : all[i].variables) {
        const size_t old = value_at(v, setting_), made = value_at(v, setting);
        for (const Held& h : held(v)) {
          const auto more = static_cast<int64_t>(h.amounts[made] - h.amounts[old]);
          if (more != 0)
            for (int t = h.first; t < h.end; ++t) over_[static_cast<size_t>(t)] += more;
        }
        setting_[static_cast<size_t>(v)] = setting[static_cast<size_t>(v)];
      }
    }
    return any;
  }

  /// Prices and a setting that keeps the limits, by messages: times at which too much is held become dearer.
  void begin() {
    Messages messages(tables_.sizes, sum_);
    std::vector<double> over, best_prices = prices_;
    std::vector<int> kept;
    double kept_cost = kInfinite, best = -kInfinite, before_best = -kInfinite, pace = 1, target = 0;
    int worse = 0;
    size_t sent = 0, entries = 0;
    for (const CostTable& table : tables_.tables) entries += 2 * table.values.size();
    constexpr size_t kMostSent = 5'000'000'000;
    for (int round = 0; round < 4000 && search_.go_on(); ++round) {
      price(all_, prices_);
      double value = messages.sweep(priced_, setting_);
      for (size_t t = 0; t < prices_.size(); ++t) value -= prices_[t] * static_cast<double>(tables_.limits[t]);
      bound_ = std::max(bound_, value);
      sent += entries;
      renew();
      if (cost_ < kept_cost && peaks_.most() <= 0) {
        kept = setting_;
        kept_cost = cost_;
      }
      if (round < 10) continue;  // the messages first
      if (value > best) {
        best = value;
        best_prices = prices_;
        worse = 0;
      } else if (++worse > 10) {
        pace *= 0.7;
        worse = 0;
      }
      if (round % 100 == 0) {
        if (round > 200 && (best < before_best + 2e-4 * std::abs(best) || sent > kMostSent)) break;
        before_best = best;
      }
      double square = 0;
      for (size_t t = 0; t < prices_.size(); ++t)
        if (over_[t] > 0 || prices_[t] > 0) square += static_cast<double>(over_[t]) * static_cast<double>(over_[t]);
      if (square == 0) break;
      target = std::max(target, value + 0.05 * std::max(std::abs(value), scale_));
      if (kept_cost < kInfinite)
        target = kept_cost;
      else if (round % 10 == 0)
        target += 0.05 * std::max(std::abs(target), scale_);
      const double step = pace * (target - value) / square;
      for (size_t t = 0; t < prices_.size(); ++t)
        prices_[t] = std::max(0.0, prices_[t] + step * static_cast<double>(over_[t]));
    }
    prices_ = best_prices;
    ease_from_best(messages, kept, kept_cost);
    if (!kept.empty()) setting_ = kept;
    prices_ = best_prices;
    renew();
  }

  /// At the best prices little is held too much. From there parts are solved until nothing is.
  void ease_from_best(Messages& messages, std::vector<int>& kept, double& kept_cost) {
    price(all_, prices_);
    for (int sweep = 0; sweep < 8; ++sweep) {
      messages.sweep(priced_, setting_);
      relaxed_.push_back(setting_);
    }
    renew();
    ease();
    if (peaks_.most() > 0 || cost_ > kept_cost) return;
    kept = setting_;
    kept_cost = cost_;
  }

  /// Rounds of the whole, then of parts with twice their work.
  void improve() {
    work_ = 0;
    for (int times = 0; times < 3; ++times) solve_part(all_, most_entries_, 10, true);
    for (const int64_t until = 3 * work_; work_ <= until && parts_ < search_.parts && search_.go_on();) try_part();
  }

  /// From the best setting to another that may lead to a better one: a region becomes as it would be at the prices
  /// alone.
  void leave_best() {
    const std::vector<int> kept = setting_;
    const std::vector<int>& priced = relaxed_[random_() % relaxed_.size()];
    const double share = std::exp2(-static_cast<double>(1 + random_() % 8));  // of all
    for (int v : draw_part(std::max<size_t>(1, static_cast<size_t>(share * static_cast<double>(all_.size())))))
      setting_[static_cast<size_t>(v)] = priced[static_cast<size_t>(v)];
    renew();
    ease();
    if (peaks_.most() <= 0 && cost_ < kNever) return;
    setting_ = kept;
    renew();
  }

  /// Solves the whole and parts until nothing is held too much.
  void ease() {
    const std::vector<double> prices = prices_;
    for (int times = 0; times < 40 && peaks_.most() > 0 && search_.go_on(); ++times) {
      solve_part(all_, most_entries_, 10, true);
      for (int i = 0; i < 200 && peaks_.most() > 0 && search_.go_on(); ++i) try_part();
    }
    prices_ = prices;
  }

  /// Solves a part at prices, again and again: dearer where it holds too much, cheaper where there is room.
  void solve_part(const std::vector<int>& variables, size_t most_entries, int rounds, bool whole, int forced = -1,
                  int to = 0) {
    std::vector<int> from = setting_;
    if (forced >= 0) from[static_cast<size_t>(forced)] = to;
    sum_.plan(variables, from, most_entries, random_);
    std::vector<int> part = sum_.planned();
    if (whole) linked_ = sum_.left_out();
    if (forced >= 0) part.push_back(forced);
    std::vector<double> prices = prices_, over;
    double best = -kInfinite, pace = 1;
    int worse = 0;
    for (int round = 0; round < rounds && search_.go_on(); ++round) {
      price(part, prices);
      std::vector<int> next = from;
      sum_.solve(priced_, next);
      work_ += static_cast<int64_t>(sum_.sums() + 4 * over_.size() + 200 * part.size());
      const double gain = priced_value(part, setting_) - priced_value(part, next);
      double room = 0;
      for (size_t t = 0; t < prices.size(); ++t)
        if (prices[t] > 0) room -= prices[t] * static_cast<double>(over_[t]);
      const double bound = -gain - room;  // of what a change of the part can cost
      const bool too_much = peaks_.most() > 0;
      if (!too_much && (bound > -kNothing * std::abs(cost_) || (whole && bound > -3e-5 * cost_))) return;
      over_of(part, next, over);
      const double value = cost_ + bound;
      if (value > best) {
        best = value;
        if (whole && !too_much) prices_ = prices;
        worse = 0;
        if (whole && !too_much && part.size() == all_.size()) bound_ = std::max(bound_, value);
      } else if (++worse > 3) {
        pace /= 2;
        worse = 0;
      }
      const bool changed = go_towards(part, next);
      if (forced >= 0 && changed && setting_[static_cast<size_t>(forced)] == to) return;
      double square = 0;
      for (size_t t = 0; t < prices.size(); ++t)
        if (over[t] > 0 || prices[t] > 0) square += over[t] * over[t];
      if (square == 0) return;
      const double gap = too_much ? std::max(cost_ - value, 0.005 * std::max(std::abs(cost_), scale_)) : cost_ - value;
      const double step = pace * gap / square;
      for (size_t t = 0; t < prices.size(); ++t) prices[t] = std::max(0.0, prices[t] + step * over[t]);
      if (too_much) prices_ = prices;
    }
  }

  void try_part() {
    ++parts_;
    const double most = std::log(static_cast<double>(std::min<size_t>(all_.size(), 2000)));
    const double unit = static_cast<double>(random_() >> 11) * 0x1p-53;
    std::vector<int> part =
        draw_part(static_cast<size_t>(std::exp(std::log(4.0) + unit * std::max(0.0, most - std::log(4.0)))));
    const int first = part[0], to = static_cast<int>(random_() % size(first));
    const size_t entries = size_t{256} << 2 * (random_() % 4);
    if (parts_ % 2 == 0) {
      solve_part(part, entries, 8, false);
    } else if (to != setting_[static_cast<size_t>(first)]) {
      if (random_() % 4 == 0 && all_.size() < 1000) part = all_;
      std::erase(part, first);
      solve_part(part, part.size() + 1 == all_.size() ? 262144 : entries, 8, false, first, to);
    }
  }

  /// About as many variables, in one to three regions.
  std::vector<int> draw_part(size_t count) {
    const size_t balls = 1 + random_() % 3;
    std::vector<int> part;
    std::vector<char>& in = in_part_;
    in.assign(all_.size(), 0);
    for (size_t ball = 0; ball < balls; ++ball) {
      size_t next = part.size();
      const size_t until = std::min(all_.size(), (ball + 1) * std::max<size_t>(1, count / balls));
      // Variables that leave the whole, since they have many neighbours, are drawn as often as all others.
      const std::vector<int>& from = linked_.empty() || random_() % 2 == 0 ? all_ : linked_;
      const int seed = from[random_() % from.size()];
      if (in[static_cast<size_t>(seed)]) continue;
      in[static_cast<size_t>(seed)] = 1;
      part.push_back(seed);
      for (; next < part.size() && part.size() < until; ++next) {
        std::swap(part[next], part[next + random_() % std::min<size_t>(4, part.size() - next)]);
        for (const PartSum::Neighbour& n : sum_.around(part[next]))
          if (!in[static_cast<size_t>(n.variable)] && part.size() < until) {
            in[static_cast<size_t>(n.variable)] = 1;
            part.push_back(n.variable);
          }
      }
    }
    return part;
  }

  LimitedTables tables_;
  const LimitedSearch& search_;
  std::mt19937_64 random_;
  PartSum sum_;
  std::vector<double> alone_, priced_, price_up_to_, steps_;
  std::vector<std::vector<Held>> held_;
  std::vector<int> all_, setting_, linked_;
  std::vector<std::vector<int>> relaxed_;  // settings that are good at the prices, whatever they hold
  std::vector<uint64_t> mark_;
  uint64_t stamp_ = 0;
  std::vector<int64_t> over_;  // what is held more than the limit, by time
  std::vector<double> prices_;
  Peaks peaks_;
  std::vector<char> in_part_;
  size_t most_entries_ = 0;
  int64_t parts_ = 0, work_ = 0;
  double cost_ = 0, bound_ = -kInfinite;
  double scale_ = 0;  // what counts as a cost where the sum has none
};

}  // namespace

LimitedSum limited_sum(const LimitedTables& tables, const LimitedSearch& search) {
  const FoldedTables folded = fold(tables);
  if (!folded.possible) return {false, kInfinite, {}, kInfinite};
  LimitedSum sum;
  if (folded.variables.empty())
    sum.found = true;
  else
    sum = Search(folded.left, search).run();
  if (!sum.found) return sum;
  sum.setting = folded.unfold(sum.setting);
  sum.bound += folded.constant;
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
    if ((held += steps[t]) > tables.limits[t]) return kInfinite;
  return sum;
}

}  // namespace trainctl
