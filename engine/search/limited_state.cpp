#include "engine/search/limited_state.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace trainctl {
namespace {

LimitedTables finite(LimitedTables tables) {
  for (CostTable& table : tables.tables)
    for (double& value : table.values)
      if (!(value < kNever)) value = kNever;
  return tables;
}

}  // namespace

LimitedState::LimitedState(LimitedTables tables)
    : tables_(finite(std::move(tables))),
      sum_(tables_.sizes, tables_.tables),
      held_(tables_.sizes.size()),
      over_(tables_.limits.size()),
      peaks_({}),
      mark_(tables_.sizes.size(), 0) {
  alone_.assign(sum_.places(), 0);
  priced_.assign(sum_.places(), 0);
  for (const CostTable& table : tables_.tables) {
    for (double value : table.values)
      if (value < kNever) scale_ = std::max(scale_, std::abs(value));
    if (table.variables.size() == 1)
      for (size_t x = 0; x < table.values.size(); ++x) alone_[sum_.place(table.variables[0]) + x] += table.values[x];
  }
  scale_ = scale_ == 0 ? 1 : 1e-6 * scale_;
  for (const Holding& h : tables_.holdings)
    held_[static_cast<size_t>(h.variable)].push_back({h.first, h.end, {h.amounts.begin(), h.amounts.end()}});
  set(std::vector<int>(tables_.sizes.size(), 0));
}

void LimitedState::set(std::vector<int> setting) {
  setting_ = std::move(setting);
  cost_ = 0;
  for (const CostTable& table : tables_.tables) {
    size_t at = 0;
    for (int v : table.variables) at = at * size(v) + value_at(v, setting_);
    cost_ += table.values[at];
  }
  std::vector<int64_t> steps(over_.size() + 1, 0);
  for (int v = 0; v < static_cast<int>(count()); ++v)
    for (const Held& h : held(v)) {
      const auto amount = static_cast<int64_t>(h.amounts[value_at(v, setting_)]);
      steps[static_cast<size_t>(h.first)] += amount;
      steps[static_cast<size_t>(h.end)] -= amount;
    }
  int64_t sum = 0;
  for (size_t t = 0; t < over_.size(); ++t) over_[t] = (sum += steps[t]) - tables_.limits[t];
  peaks_ = Peaks(over_);
}

void LimitedState::price(const std::vector<int>& variables, const std::vector<double>& prices) {
  price_up_to_.resize(prices.size() + 1);
  price_up_to_[0] = 0;
  for (size_t t = 0; t < prices.size(); ++t) price_up_to_[t + 1] = price_up_to_[t] + prices[t];
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

double LimitedState::priced_value(const std::vector<int>& part, const std::vector<int>& setting) {
  ++walk_;
  double value = 0;
  for (int v : part) {
    const size_t x = value_at(v, setting);
    value += priced_[sum_.place(v) + x];
    mark_[static_cast<size_t>(v)] = walk_;
    for (const PartSum::Neighbour& n : sum_.around(v))
      if (mark_[static_cast<size_t>(n.variable)] != walk_)
        value += n.values[value_at(n.variable, setting) * size(v) + x];
  }
  return value;
}

std::vector<double> LimitedState::over_with(const std::vector<int>& part, const std::vector<int>& setting) {
  std::vector<double> steps(over_.size() + 1, 0), over(over_.size());
  for (int v : part) {
    const size_t before = value_at(v, setting_), after = value_at(v, setting);
    if (before == after) continue;
    for (const Held& h : held(v)) {
      const double more = h.amounts[after] - h.amounts[before];
      steps[static_cast<size_t>(h.first)] += more;
      steps[static_cast<size_t>(h.end)] -= more;
    }
  }
  double sum = 0;
  for (size_t t = 0; t < over_.size(); ++t) over[t] = static_cast<double>(over_[t]) + (sum += steps[t]);
  return over;
}

std::vector<LimitedState::Change> LimitedState::changes(const std::vector<int>& part, const std::vector<int>& setting) {
  std::vector<Change> all;
  ++walk_;
  const auto changed = [&](int v) { return setting_[static_cast<size_t>(v)] != setting[static_cast<size_t>(v)]; };
  for (int first : part) {
    if (mark_[static_cast<size_t>(first)] == walk_ || !changed(first)) continue;
    Change change;
    change.variables.push_back(first);
    mark_[static_cast<size_t>(first)] = walk_;
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
        if (mark_[w] != walk_ && changed(n.variable)) {
          mark_[w] = walk_;
          change.variables.push_back(n.variable);
        }
      }
    }
    all.push_back(std::move(change));
  }
  return all;
}

/// Adds a change to what is held, or takes it away.
void LimitedState::hold(const Change& change, const std::vector<int>& setting, bool take_away) {
  for (int v : change.variables) {
    const size_t before = value_at(v, setting_), after = value_at(v, setting);
    for (const Held& h : held(v)) {
      const auto more = static_cast<int64_t>(h.amounts[after] - h.amounts[before]);
      peaks_.add(h.first, h.end, take_away ? -more : more);
    }
  }
}

bool LimitedState::hold_if_fits(const Change& change, const std::vector<int>& setting) {
  hold(change, setting, false);
  if (peaks_.most() <= 0) return true;
  hold(change, setting, true);
  return false;
}

bool LimitedState::go_towards(const std::vector<int>& part, const std::vector<int>& setting) {
  std::vector<Change> all = changes(part, setting);
  if (all.empty()) return false;
  std::sort(all.begin(), all.end(), [](const Change& a, const Change& b) { return a.priced < b.priced; });
  return settle(all, over_limit() ? taken_above(all, setting) : taken_within(all, setting), setting);
}

/// Takes the changes that keep the limits, those worth most at the prices first.
std::vector<char> LimitedState::taken_within(const std::vector<Change>& all, const std::vector<int>& setting) {
  std::vector<char> taken(all.size(), 0);
  double cost = 0;
  const auto take = [&](size_t i) {
    taken[i] = hold_if_fits(all[i], setting);
    if (taken[i]) cost += all[i].cost;
    return taken[i] != 0;
  };
  bool refused = false;
  for (size_t i = 0; i < all.size(); ++i)
    if (all[i].cost <= 0) refused = !take(i) || refused;
  if (refused) {
    // Changes that cost more may hold less, and make room for changes that cost less.
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
    }
  }
  return taken;
}

/// Where too much is held.
std::vector<char> LimitedState::taken_above(const std::vector<Change>& all, const std::vector<int>& setting) {
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
bool LimitedState::settle(const std::vector<Change>& all, const std::vector<char>& taken,
                          const std::vector<int>& setting) {
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

}  // namespace trainctl
