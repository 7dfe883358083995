// A number over the steps of a run, thinned for drawing.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace trainctl {

struct Curve {
  std::vector<int64_t> steps;  ///< ascending, except where a restarted run has made steps again
  std::vector<double> values;  ///< nan and infinite ones too

  void add(int64_t step, double value);
};

/// At most about `points` of the curve's points: from each of equally long stretches the smallest, the largest and the
/// first non-finite one, and the ends of the curve. No spike is lost.
Curve thinned(const Curve& curve, size_t points);

/// {"steps": […], "values": […]}; a value that is not finite is "nan", "inf" or "-inf".
nlohmann::ordered_json to_json(const Curve& curve);

/// Summary statistics of all values, in seconds. For an empty curve, only count 0.
/// {"count", "mean", "median", "p90", "p99", "least", "most"}
nlohmann::ordered_json distribution_json(std::vector<double> values);

}  // namespace trainctl
