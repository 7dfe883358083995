// A lower bound of a sum of tables of one and two variables, and a setting that is often good, by messages along the
// tables: sequential tree-reweighted message passing (Kolmogorov, IEEE PAMI 28 (10), 2006). A sweep costs as much as
// reading all tables twice. The bound never falls from sweep to sweep while the costs stay.
#pragma once

#include <vector>

#include "engine/search/part_sum.h"

namespace trainctl {

class Messages {
 public:
  /// `sum` must outlive this.
  Messages(const std::vector<int>& sizes, const PartSum& sum);

  /// One pass up the variables and one down. `alone` as in PartSum. Returns the bound; fills the setting.
  double sweep(const std::vector<double>& alone, std::vector<int>& setting);

 private:
  struct Link {
    int other;
    const double* values;  // the other's value slowest
    const double* beside;  // this variable's slowest
    size_t in, out;        // where the messages from and to the other begin
  };

  void sum_in(size_t v, const std::vector<double>& alone);
  double send(size_t v, const Link& link, double share);

  std::vector<int> sizes_;
  std::vector<std::vector<Link>> links_;
  std::vector<double> share_;  // of a variable's costs that goes into each message
  std::vector<size_t> places_;
  std::vector<double> messages_, in_, part_;
};

}  // namespace trainctl
