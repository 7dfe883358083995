#include "engine/search/time_prices.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace trainctl {
namespace {

constexpr double kNoPrice = std::numeric_limits<double>::infinity();
constexpr size_t kMostWork = 5'000'000'000;  // entries that messages read, and so many more for each: some 10 s
constexpr size_t kWorkOfMessage = 64;
constexpr double kGain = 1e-3;  // of the bound in 100 rounds, below which they end
constexpr int kMostRounds = 4000;
constexpr int kMostMet = 64;

class Pricing {
 public:
  Pricing(LimitedState& state, Messages& messages, double share_of_last)
      : state_(state),
        messages_(messages),
        share_of_last_(share_of_last),
        all_(state.count()),
        prices_(state.over().size(), 0) {
    std::iota(all_.begin(), all_.end(), 0);
    for (const CostTable& table : state.tables().tables) work_ += 2 * (table.values.size() + kWorkOfMessage);
    found_ = {prices_, -kNoPrice, {}, kNoPrice, {}};
  }

  TimePrices run(const std::function<bool()>& go_on) {
    std::vector<int> setting = state_.setting();
    double before = -kNoPrice;
    size_t done = 0;
    for (int round = 0; round < kMostRounds && go_on(); ++round) {
      const double bound = sweep(setting);
      done += work_;
      meet(setting, round);
      if (round < 10) continue;  // the messages first
      note(bound);
      if (round % 100 == 0) {
        if (round > 200 && (best_ < before + kGain * std::abs(best_) || done > kMostWork)) break;
        before = best_;
      }
      if (!move(bound, round)) break;
    }
    return std::move(found_);
  }

 private:
  double sweep(std::vector<int>& setting) {
    state_.price(all_, prices_);
    double bound = messages_.sweep(state_.priced(), setting);
    for (size_t t = 0; t < prices_.size(); ++t) bound -= prices_[t] * static_cast<double>(state_.tables().limits[t]);
    found_.bound = std::max(found_.bound, bound);
    return bound;
  }

  void meet(const std::vector<int>& setting, int round) {
    state_.set(setting);
    if (state_.cost() < found_.kept_cost && !state_.over_limit()) {
      found_.kept = setting;
      found_.kept_cost = state_.cost();
    }
    if (round <= 50 || round % 10 != 0) return;
    if (found_.met.size() < kMostMet)
      found_.met.push_back(setting);
    else
      found_.met[static_cast<size_t>(round / 10 % kMostMet)] = setting;
  }

  void note(double bound) {
    if (bound > best_) {
      best_ = bound;
      found_.prices = prices_;
      worse_ = 0;
    } else if (++worse_ > 10) {
      pace_ *= 0.7;
      worse_ = 0;
    }
  }

  /// The step is Polyak's: as if the bound could reach the cost of the best setting, or a guess of it. False: nothing
  /// is over, and nothing is priced.
  bool move(double bound, int round) {
    const std::vector<int64_t>& over = state_.over();
    if (direction_.empty()) direction_.assign(over.begin(), over.end());
    for (size_t t = 0; t < over.size(); ++t)
      direction_[t] += share_of_last_ * (static_cast<double>(over[t]) - direction_[t]);
    const double square = squares(direction_, prices_);
    if (square == 0) return false;
    target_ = std::max(target_, bound + 0.05 * std::max(std::abs(bound), state_.scale()));
    if (found_.kept_cost < kNoPrice)
      target_ = found_.kept_cost;
    else if (round % 10 == 0)
      target_ += 0.05 * std::max(std::abs(target_), state_.scale());
    raise(prices_, direction_, pace_ * (target_ - bound) / square);
    return true;
  }

  LimitedState& state_;
  Messages& messages_;
  const double share_of_last_;
  std::vector<int> all_;
  std::vector<double> prices_, direction_;
  TimePrices found_;
  size_t work_ = 0;  // of a sweep
  double best_ = -kNoPrice, pace_ = 1, target_ = 0;
  int worse_ = 0;
};

}  // namespace

TimePrices time_prices(LimitedState& state, Messages& messages, double share_of_last,
                       const std::function<bool()>& go_on) {
  return Pricing(state, messages, share_of_last).run(go_on);
}

double squares(const std::vector<double>& over, const std::vector<double>& prices) {
  double sum = 0;
  for (size_t t = 0; t < prices.size(); ++t)
    if (over[t] > 0 || prices[t] > 0) sum += over[t] * over[t];
  return sum;
}

void raise(std::vector<double>& prices, const std::vector<double>& over, double step) {
  for (size_t t = 0; t < prices.size(); ++t) prices[t] = std::max(0.0, prices[t] + step * over[t]);
}

}  // namespace trainctl
