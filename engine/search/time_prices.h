// Prices of the times of limited_sum.h, from which its search starts. Times at which too much is held become dearer,
// the others cheaper, until the bound by messages (messages.h) at the prices rises no more.
#pragma once

#include <functional>
#include <vector>

#include "engine/search/limited_state.h"
#include "engine/search/messages.h"

namespace trainctl {

struct TimePrices {
  std::vector<double> prices;         ///< by time, cost per amount held; those of the highest bound
  double bound = 0;                   ///< no setting that keeps the limits costs less
  std::vector<int> kept;              ///< cheapest of the settings met that keep the limits; empty: none
  double kept_cost = 0;               ///< its cost; infinite: none
  std::vector<std::vector<int>> met;  ///< settings that are good at the prices met last, whatever they hold; at most 64
};

/// Prices follow an average of what was held over the rounds, in which the last round has `share_of_last`, up to 1.
/// Where many variables are equal, less than 1 gives the higher bound: they change their values all at once when a
/// price passes a threshold, and prices that follow the last round alone swing from one side of it to the other
/// (Barahona and Anbil, "The volume algorithm", Mathematical Programming 87, 2000). Elsewhere either may give the
/// better prices. Changes the state's setting and what it has priced. Counts work, not seconds: the same state gives
/// the same prices, as long as `go_on`, which is asked before each sweep of messages, returns true.
TimePrices time_prices(LimitedState& state, Messages& messages, double share_of_last,
                       const std::function<bool()>& go_on);

/// The sum of squares of what is held above or below the limits, at the times whose prices may move.
double squares(const std::vector<double>& over, const std::vector<double>& prices);

/// Prices become dearer by step * over, and never negative.
void raise(std::vector<double>& prices, const std::vector<double>& over, double step);

}  // namespace trainctl
