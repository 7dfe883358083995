// The exact minimum over a part of the variables of a sum of tables of one and two variables, the others as they are.
// Eliminates as least_sum() does, but plans the elimination once and then solves it for many costs of single variables:
//
//   plan(part)    the order; where a table would grow too large, a variable leaves the part and stays as it is
//   solve(alone)  min-plus products in that order, then each variable's best value in reverse
#pragma once

#include <random>
#include <vector>

#include "engine/search/least_sum.h"

namespace trainctl {

class PartSum {
 public:
  struct Neighbour {
    int variable;
    const double* values;  ///< the neighbour's slowest
    const double* beside;  ///< the same table, the neighbour's fastest
  };

  /// `tables` of two variables; those of one are costs alone. All must outlive this.
  PartSum(const std::vector<int>& sizes, const std::vector<CostTable>& tables);

  const std::vector<Neighbour>& around(int variable) const { return around_[static_cast<size_t>(variable)]; }
  /// Where a variable's costs alone begin, in a list of those of all variables.
  size_t place(int variable) const { return places_[static_cast<size_t>(variable)]; }
  size_t places() const { return places_.back(); }

  /// Adds the entries of tables of two variables for each value of `variable`, with its neighbours' values.
  void add_beside(int variable, const std::vector<int>& setting, double* to) const;

  /// Plans the elimination of these variables, each once; none makes more than `most_entries` sums. Variables that
  /// leave the part are drawn.
  void plan(const std::vector<int>& part, const std::vector<int>& setting, size_t most_entries,
            std::mt19937_64& random);
  const std::vector<int>& planned() const { return order_; }
  const std::vector<int>& left_out() const { return left_out_; }
  size_t sums() const { return sums_; }  ///< number of sums that solve() forms

  /// Gives the planned variables their best values. Returns the sum of what has a planned variable.
  double solve(const std::vector<double>& alone, std::vector<int>& setting);

 private:
  struct Read {
    const double* values = nullptr;  // of the sum's own tables
    int made = -1;                   // or the step that makes it
    std::vector<size_t> strides;     // by the step's neighbours; its own variable is the fastest
  };
  struct Step {
    int variable;
    size_t size;
    std::vector<int> neighbours;  // those eliminated later; the next to be eliminated last
    std::vector<Read> reads;
    size_t entries = 1;
    size_t begin = 0;  // of what it makes, in made_
  };

  void choose_order(const std::vector<int>& part, size_t most_entries, std::mt19937_64& random);
  void set_steps();
  void make(const Step& step, const double* alone, double* to) const;
  int best_value(const Step& step, const double* alone, const std::vector<int>& setting) const;
  const double* values_of(const Read& read) const;

  std::vector<int> sizes_;
  std::vector<size_t> places_;
  std::vector<std::vector<double>> tables_;
  std::vector<std::vector<Neighbour>> around_;

  std::vector<int> order_;
  std::vector<int> rank_;                 // by variable: its place in the order, or -1
  std::vector<std::vector<int>> linked_;  // by variable, while an order is chosen
  std::vector<int> left_out_;
  std::vector<Step> steps_;
  std::vector<double> beside_;  // what the neighbours outside add, for each planned variable
  std::vector<size_t> beside_at_;
  std::vector<double> made_;
  mutable std::vector<double> sum_;
  size_t sums_ = 0;
};

}  // namespace trainctl
