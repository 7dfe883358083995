// A problem of limited_sum.h together with a setting: what it costs, what is held at each time, and changes of it.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/search/limited_sum.h"
#include "engine/search/part_sum.h"
#include "engine/search/peaks.h"

namespace trainctl {

/// Stands for infinite: sums of finite costs must be smaller.
inline constexpr double kNever = 1e15;

class LimitedState {
 public:
  /// At least one variable. Starts at the first value of each.
  explicit LimitedState(LimitedTables tables);

  size_t count() const { return tables_.sizes.size(); }
  size_t size(int v) const { return static_cast<size_t>(tables_.sizes[static_cast<size_t>(v)]); }
  const LimitedTables& tables() const { return tables_; }
  PartSum& sum() { return sum_; }
  double scale() const { return scale_; }  ///< least scale of costs, for sums of nearly zero

  const std::vector<int>& setting() const { return setting_; }
  void set(std::vector<int> setting);
  double cost() const { return cost_; }
  const std::vector<int64_t>& over() const { return over_; }  ///< amount held above the limit, by time
  bool over_limit() const { return peaks_.most() > 0; }

  /// Prices each value of some variables: its cost alone and, at these prices of the times, what it holds.
  void price(const std::vector<int>& variables, const std::vector<double>& prices);
  const std::vector<double>& priced() const { return priced_; }
  /// Cost of a setting of a part at the prices, with the tables that it shares with others.
  double priced_value(const std::vector<int>& part, const std::vector<int>& setting);
  /// How much more than the limits another setting of a part holds at each time.
  std::vector<double> over_with(const std::vector<int>& part, const std::vector<int>& setting);

  /// Makes those changes of a part towards `setting` that together keep the limits and cost less, as far as one pass
  /// finds them. Where too much is held: what is worth it at the prices and makes the largest excess no larger.
  /// Whether there were any.
  bool go_towards(const std::vector<int>& part, const std::vector<int>& setting);

 private:
  struct Held {
    int first, end;
    std::vector<double> amounts;
  };
  /// Connected variables, whose change costs what it costs whatever the other changes are.
  struct Change {
    std::vector<int> variables;
    double cost = 0;
    double priced = 0;
  };

  size_t value_at(int v, const std::vector<int>& setting) const {
    return static_cast<size_t>(setting[static_cast<size_t>(v)]);
  }
  const std::vector<Held>& held(int v) const { return held_[static_cast<size_t>(v)]; }
  std::vector<Change> changes(const std::vector<int>& part, const std::vector<int>& setting);
  void hold(const Change& change, const std::vector<int>& setting, bool take_away);
  bool hold_if_fits(const Change& change, const std::vector<int>& setting);
  std::vector<char> taken_within(const std::vector<Change>& all, const std::vector<int>& setting);
  std::vector<char> taken_above(const std::vector<Change>& all, const std::vector<int>& setting);
  bool settle(const std::vector<Change>& all, const std::vector<char>& taken, const std::vector<int>& setting);

  LimitedTables tables_;
  PartSum sum_;
  std::vector<double> alone_, priced_, price_up_to_;
  std::vector<std::vector<Held>> held_;
  std::vector<int> setting_;
  std::vector<int64_t> over_;
  Peaks peaks_;
  std::vector<uint64_t> mark_;  // by variable: the last walk over a part that met it
  uint64_t walk_ = 0;
  double cost_ = 0, scale_ = 0;
};

}  // namespace trainctl
