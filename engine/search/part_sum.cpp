#include "engine/search/part_sum.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

namespace trainctl {
namespace {

constexpr double kNoPartSum = std::numeric_limits<double>::infinity();

void insert(std::vector<int>& sorted, int value) {
  const auto at = std::lower_bound(sorted.begin(), sorted.end(), value);
  if (at == sorted.end() || *at != value) sorted.insert(at, value);
}

void remove(std::vector<int>& sorted, int value) {
  const auto at = std::lower_bound(sorted.begin(), sorted.end(), value);
  if (at != sorted.end() && *at == value) sorted.erase(at);
}

}  // namespace

PartSum::PartSum(const std::vector<int>& sizes, const std::vector<CostTable>& tables)
    : sizes_(sizes), places_(1, 0), around_(sizes.size()), rank_(sizes.size(), -1), linked_(sizes.size()) {
  for (int size : sizes) places_.push_back(places_.back() + static_cast<size_t>(size));
  for (const CostTable& table : tables) {
    if (table.variables.size() != 2) continue;
    const int a = table.variables[0], b = table.variables[1];
    const auto rows = static_cast<size_t>(sizes[static_cast<size_t>(a)]);
    const auto columns = static_cast<size_t>(sizes[static_cast<size_t>(b)]);
    std::vector<double> turned(table.values.size());
    for (size_t r = 0; r < rows; ++r)
      for (size_t c = 0; c < columns; ++c) turned[c * rows + r] = table.values[r * columns + c];
    tables_.push_back(std::move(turned));
    around_[static_cast<size_t>(b)].push_back({a, table.values.data(), tables_.back().data()});
    around_[static_cast<size_t>(a)].push_back({b, tables_.back().data(), table.values.data()});
  }
}

void PartSum::add_beside(int variable, const std::vector<int>& setting, double* to) const {
  const auto size = static_cast<size_t>(sizes_[static_cast<size_t>(variable)]);
  for (const Neighbour& n : around(variable)) {
    const double* from = n.values + static_cast<size_t>(setting[static_cast<size_t>(n.variable)]) * size;
    for (size_t x = 0; x < size; ++x) to[x] += from[x];
  }
}

void PartSum::choose_order(const std::vector<int>& part, size_t most_entries, std::mt19937_64& random) {
  for (int v : order_) rank_[static_cast<size_t>(v)] = -1;
  order_.clear();
  left_out_.clear();
  constexpr int kOpen = -2;
  for (int v : part) rank_[static_cast<size_t>(v)] = kOpen;
  const auto linked = [this](int v) -> std::vector<int>& { return linked_[static_cast<size_t>(v)]; };
  for (int v : part) {
    linked(v).clear();
    for (const Neighbour& n : around(v))
      if (rank_[static_cast<size_t>(n.variable)] == kOpen) linked(v).push_back(n.variable);
    std::sort(linked(v).begin(), linked(v).end());
    linked(v).erase(std::unique(linked(v).begin(), linked(v).end()), linked(v).end());
  }
  const auto entries = [&](int v) {
    double count = sizes_[static_cast<size_t>(v)];
    for (int w : linked(v)) count *= sizes_[static_cast<size_t>(w)];
    return count;
  };
  using Next = std::pair<double, int>;
  std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
  for (int v : part) next.emplace(entries(v), v);
  std::vector<int> open = part;
  const int draws = 1 + static_cast<int>(random() % 12);  // few: those of many neighbours stay now and then
  while (!next.empty()) {
    const auto [count, v] = next.top();
    next.pop();
    if (rank_[static_cast<size_t>(v)] != kOpen || count != entries(v)) continue;
    if (count > static_cast<double>(most_entries)) {
      // The variable with the most neighbours of a few that are drawn leaves.
      next.emplace(count, v);
      int most = v;
      for (int draw = 0; draw < draws; ++draw) {
        size_t at = random() % open.size();
        while (rank_[static_cast<size_t>(open[at])] != kOpen) {  // v is open, so this ends
          open[at] = open.back();
          open.pop_back();
          at = random() % open.size();
        }
        if (linked(open[at]).size() > linked(most).size()) most = open[at];
      }
      rank_[static_cast<size_t>(most)] = -1;
      left_out_.push_back(most);
      for (int w : linked(most)) {
        remove(linked(w), most);
        next.emplace(entries(w), w);
      }
      continue;
    }
    rank_[static_cast<size_t>(v)] = static_cast<int>(order_.size());
    order_.push_back(v);
    const std::vector<int>& around_it = linked(v);
    for (int w : around_it) {
      remove(linked(w), v);
      for (int u : around_it)
        if (u != w) insert(linked(w), u);
    }
    for (int w : around_it) next.emplace(entries(w), w);
  }
}

void PartSum::set_steps() {
  steps_.clear();
  steps_.resize(order_.size());
  sums_ = 0;
  size_t made = 0;
  std::vector<std::vector<int>> feeds(order_.size());  // the steps whose tables a step reads
  for (size_t s = 0; s < order_.size(); ++s) {
    Step& step = steps_[s];
    step.variable = order_[s];
    step.size = static_cast<size_t>(sizes_[static_cast<size_t>(order_[s])]);
    step.neighbours = linked_[static_cast<size_t>(order_[s])];
    std::erase_if(step.neighbours, [this](int v) { return rank_[static_cast<size_t>(v)] < 0; });  // left out later
    std::sort(step.neighbours.begin(), step.neighbours.end(),
              [this](int a, int b) { return rank_[static_cast<size_t>(a)] > rank_[static_cast<size_t>(b)]; });
    const auto place = [&step](int v) {
      return static_cast<size_t>(std::find(step.neighbours.begin(), step.neighbours.end(), v) -
                                 step.neighbours.begin());
    };
    for (int v : step.neighbours) step.entries *= static_cast<size_t>(sizes_[static_cast<size_t>(v)]);
    for (const Neighbour& n : around(step.variable))
      if (rank_[static_cast<size_t>(n.variable)] > static_cast<int>(s)) {
        step.reads.push_back({n.values, -1, std::vector<size_t>(step.neighbours.size(), 0)});
        step.reads.back().strides[place(n.variable)] = step.size;
      }
    for (int from : feeds[s]) {
      Read read{nullptr, from, std::vector<size_t>(step.neighbours.size(), 0)};
      size_t stride = step.size;
      const std::vector<int>& of = steps_[static_cast<size_t>(from)].neighbours;
      for (size_t i = of.size() - 1; i-- > 0;) {
        read.strides[place(of[i])] = stride;
        stride *= static_cast<size_t>(sizes_[static_cast<size_t>(of[i])]);
      }
      step.reads.push_back(std::move(read));
    }
    step.begin = made;
    made += step.entries;
    sums_ += step.entries * step.size * step.reads.size();
    if (!step.neighbours.empty())
      feeds[static_cast<size_t>(rank_[static_cast<size_t>(step.neighbours.back())])].push_back(static_cast<int>(s));
  }
  made_.resize(std::max(made_.size(), made));
}

void PartSum::plan(const std::vector<int>& part, const std::vector<int>& setting, size_t most_entries,
                   std::mt19937_64& random) {
  choose_order(part, most_entries, random);
  set_steps();
  beside_at_.assign(1, 0);
  beside_.clear();
  for (const Step& step : steps_) {
    beside_.resize(beside_.size() + step.size, 0);
    double* to = &beside_[beside_at_.back()];
    for (const Neighbour& n : around(step.variable)) {
      if (rank_[static_cast<size_t>(n.variable)] >= 0) continue;
      const double* from = n.values + static_cast<size_t>(setting[static_cast<size_t>(n.variable)]) * step.size;
      for (size_t x = 0; x < step.size; ++x) to[x] += from[x];
    }
    beside_at_.push_back(beside_.size());
  }
}

const double* PartSum::values_of(const Read& read) const {
  return read.made < 0 ? read.values : &made_[steps_[static_cast<size_t>(read.made)].begin];
}

namespace {

/// The least of alone[x] + from[0][x] + ... + from[reads - 1][x].
template <size_t reads>
double least_of(const double* alone, const double* const* from, size_t size) {
  double even = kNoPartSum, odd = kNoPartSum;
  const auto sum = [&](size_t x) {
    double all = alone[x];
    for (size_t r = 0; r < reads; ++r) all += from[r][x];
    return all;
  };
  size_t x = 0;
  for (; x + 1 < size; x += 2) {
    const double a = sum(x), b = sum(x + 1);
    even = a < even ? a : even;
    odd = b < odd ? b : odd;
  }
  if (x < size) even = std::min(even, sum(x));
  return std::min(even, odd);
}

double least_of_all(const double* alone, const std::vector<const double*>& from, size_t size, double* sum) {
  switch (from.size()) {
    case 0:
      return least_of<0>(alone, from.data(), size);
    case 1:
      return least_of<1>(alone, from.data(), size);
    case 2:
      return least_of<2>(alone, from.data(), size);
    case 3:
      return least_of<3>(alone, from.data(), size);
    case 4:
      return least_of<4>(alone, from.data(), size);
    default:
      break;
  }
  for (size_t x = 0; x < size; ++x) sum[x] = alone[x] + from[4][x];
  for (size_t r = 5; r < from.size(); ++r)
    for (size_t x = 0; x < size; ++x) sum[x] += from[r][x];
  return least_of<4>(sum, from.data(), size);
}

}  // namespace

void PartSum::make(const Step& step, const double* alone, double* to) const {
  const size_t count = step.reads.size(), fast = step.neighbours.size();
  sum_.resize(step.size);
  std::vector<const double*> from(count);
  for (size_t r = 0; r < count; ++r) from[r] = values_of(step.reads[r]);
  std::vector<int> setting(fast, 0);
  for (size_t entry = 0; entry < step.entries; ++entry) {
    to[entry] = least_of_all(alone, from, step.size, sum_.data());
    for (size_t i = fast; i-- > 0;) {
      const int size = sizes_[static_cast<size_t>(step.neighbours[i])];
      for (size_t r = 0; r < count; ++r) from[r] += step.reads[r].strides[i];
      if (++setting[i] < size) break;
      for (size_t r = 0; r < count; ++r) from[r] -= step.reads[r].strides[i] * static_cast<size_t>(size);
      setting[i] = 0;
    }
  }
}

int PartSum::best_value(const Step& step, const double* alone, const std::vector<int>& setting) const {
  sum_.assign(alone, alone + step.size);
  for (const Read& read : step.reads) {
    const double* from = values_of(read);
    for (size_t i = 0; i < step.neighbours.size(); ++i)
      from += read.strides[i] * static_cast<size_t>(setting[static_cast<size_t>(step.neighbours[i])]);
    for (size_t x = 0; x < step.size; ++x) sum_[x] += from[x];
  }
  return static_cast<int>(std::min_element(sum_.begin(), sum_.end()) - sum_.begin());
}

double PartSum::solve(const std::vector<double>& alone, std::vector<int>& setting) {
  std::vector<double> all = beside_;
  double value = 0;
  for (size_t s = 0; s < steps_.size(); ++s) {
    const Step& step = steps_[s];
    double* own = &all[beside_at_[s]];
    for (size_t x = 0; x < step.size; ++x) own[x] += alone[place(step.variable) + x];
    make(step, own, &made_[step.begin]);
    if (step.neighbours.empty()) value += made_[step.begin];
  }
  for (size_t s = steps_.size(); s-- > 0;)
    setting[static_cast<size_t>(steps_[s].variable)] = best_value(steps_[s], &all[beside_at_[s]], setting);
  return value;
}

}  // namespace trainctl
