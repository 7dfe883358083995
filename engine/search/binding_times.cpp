#include "engine/search/binding_times.h"

namespace trainctl {

std::vector<size_t> binding_times(const std::vector<int64_t>& limits, const std::vector<HeldInterval>& intervals) {
  const size_t times = limits.size();
  std::vector<int> begun(times + 1, 0), ended(times + 1, 0);  // intervals up to a time
  std::vector<int64_t> most(times + 1, 0);
  for (const HeldInterval& interval : intervals) {
    if (interval.first >= interval.end) continue;
    ++begun[static_cast<size_t>(interval.first)];
    ++ended[static_cast<size_t>(interval.end)];
    most[static_cast<size_t>(interval.first)] += interval.most;
    most[static_cast<size_t>(interval.end)] -= interval.most;
  }
  for (size_t t = 0; t < times; ++t) {
    begun[t + 1] += begun[t];
    ended[t + 1] += ended[t];
    most[t + 1] += most[t];
  }
  std::vector<size_t> stay;
  for (size_t t = 0; t < times; ++t) {
    if (most[t] <= limits[t]) continue;
    // Between two times at which nothing ends the later holds all that the earlier does, and where nothing begins the
    // earlier all that the later does.
    while (!stay.empty() && ended[stay.back()] == ended[t] && limits[t] <= limits[stay.back()]) stay.pop_back();
    if (stay.empty() || begun[stay.back()] != begun[t] || limits[t] < limits[stay.back()]) stay.push_back(t);
  }
  return stay;
}

}  // namespace trainctl
