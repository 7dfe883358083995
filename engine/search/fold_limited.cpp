#include "engine/search/fold_limited.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "engine/base/error.h"
#include "engine/search/binding_times.h"

namespace trainctl {
namespace {

constexpr double kNoFold = std::numeric_limits<double>::infinity();
constexpr size_t kMostMade = 4096;  // entries of a table that an elimination may make

/// Amounts that a variable holds over the times first, ..., end - 1, by value.
struct HeldAmounts {
  int first, end;
  std::vector<int64_t> amounts;
};

struct Edge {
  int from = -1, to = -1;
  std::vector<double> values;  // the second fastest
  bool gone = false;
};

struct Variable {
  std::vector<int> names;  // of its values
  std::vector<double> alone;
  std::vector<HeldAmounts> held;
  std::unordered_map<uint64_t, size_t> place;  // of an interval in `held`; kept for what others join
  std::vector<int> edges;
  bool settled = false;  // each holding's least amount is zero
  bool gone = false;
  bool queued = false;
};

class Folding {
 public:
  explicit Folding(const LimitedTables& tables) : limits_(tables.limits), variables_(tables.sizes.size()) {
    for (size_t v = 0; v < variables_.size(); ++v) {
      variables_[v].names.resize(static_cast<size_t>(tables.sizes[v]));
      std::iota(variables_[v].names.begin(), variables_[v].names.end(), 0);
      variables_[v].alone.assign(variables_[v].names.size(), 0);
    }
    for (const CostTable& table : tables.tables) {
      check(table.variables.size() == 1 || table.variables.size() == 2, "a table has one or two variables");
      if (table.variables.size() == 2) {
        add_edge({table.variables[0], table.variables[1], table.values});
        continue;
      }
      std::vector<double>& alone = of(table.variables[0]).alone;
      for (size_t i = 0; i < alone.size(); ++i) alone[i] += table.values[i];
    }
    for (const Holding& holding : tables.holdings)
      of(holding.variable).held.push_back({holding.first, holding.end, holding.amounts});
  }

  FoldedTables run() {
    drop_times();
    for (int v = 0; v < count(); ++v) queue(v);
    while (possible_) {
      work();
      if (!possible_) break;
      drop_times();
      if (!too_much_memory()) break;
    }
    if (possible_) merge_holdings();
    return take();
  }

 private:
  int count() const { return static_cast<int>(variables_.size()); }
  Variable& of(int v) { return variables_[static_cast<size_t>(v)]; }
  size_t size(int v) const { return variables_[static_cast<size_t>(v)].names.size(); }

  void queue(int v) {
    if (of(v).queued || of(v).gone) return;
    of(v).queued = true;
    queue_.push_back(v);
  }

  void queue_around(int v) {
    queue(v);
    for (int e : of(v).edges) queue(other(e, v));
  }

  int other(int e, int v) const {
    const Edge& edge = edges_[static_cast<size_t>(e)];
    return edge.from == v ? edge.to : edge.from;
  }

  /// Cost of value `x` of `v` with value `y` of the edge's other variable.
  double at(const Edge& edge, int v, size_t x, size_t y) const {
    return edge.from == v ? edge.values[x * size(edge.to) + y] : edge.values[y * size(v) + x];
  }

  void add_edge(Edge made) {
    for (int e : of(made.from).edges)
      if (other(e, made.from) == made.to) {
        Edge& edge = edges_[static_cast<size_t>(e)];
        for (size_t x = 0; x < size(edge.from); ++x)
          for (size_t y = 0; y < size(edge.to); ++y) edge.values[x * size(edge.to) + y] += at(made, edge.from, x, y);
        return;
      }
    of(made.from).edges.push_back(static_cast<int>(edges_.size()));
    of(made.to).edges.push_back(static_cast<int>(edges_.size()));
    edges_.push_back(std::move(made));
  }

  void remove_edge(int e) {
    Edge& edge = edges_[static_cast<size_t>(e)];
    std::erase(of(edge.from).edges, e);
    std::erase(of(edge.to).edges, e);
    edge.gone = true;
    edge.values = {};
  }

  /// Only the values at these places stay.
  void keep(int v, const std::vector<size_t>& places) {
    if (places.empty()) possible_ = false;
    if (places.size() == size(v) || !possible_) return;
    for (int e : of(v).edges) {
      Edge& edge = edges_[static_cast<size_t>(e)];
      const size_t columns = size(edge.to);
      std::vector<double> values;
      if (edge.from == v) {
        for (size_t x : places)
          values.insert(values.end(), edge.values.begin() + static_cast<std::ptrdiff_t>(x * columns),
                        edge.values.begin() + static_cast<std::ptrdiff_t>((x + 1) * columns));
      } else {
        for (size_t y = 0; y < size(edge.from); ++y)
          for (size_t x : places) values.push_back(edge.values[y * columns + x]);
      }
      edge.values = std::move(values);
    }
    const auto pick = [&places](auto& list) {
      for (size_t i = 0; i < places.size(); ++i) list[i] = list[places[i]];
      list.resize(places.size());
    };
    for (HeldAmounts& held : of(v).held) pick(held.amounts);
    of(v).settled = false;
    pick(of(v).alone);
    pick(of(v).names);
    queue_around(v);
  }

  /// Takes from the limits what a variable holds whatever its value.
  void settle_holdings(int v) {
    if (of(v).settled) return;
    of(v).settled = true;
    of(v).place.clear();
    std::vector<HeldAmounts>& all = of(v).held;
    for (HeldAmounts& held : all) {
      const int64_t least = *std::min_element(held.amounts.begin(), held.amounts.end());
      if (least == 0) continue;
      for (int64_t& amount : held.amounts) amount -= least;
      for (int t = held.first; t < held.end; ++t)
        if ((limits_[static_cast<size_t>(t)] -= least) < 0) possible_ = false;
    }
    std::erase_if(all, [](const HeldAmounts& held) {
      return held.first >= held.end ||
             std::all_of(held.amounts.begin(), held.amounts.end(), [](int64_t a) { return a == 0; });
    });
  }

  void work() {
    while (!queue_.empty() && possible_) {
      const int v = queue_.front();
      queue_.pop_front();
      of(v).queued = false;
      if (of(v).gone) continue;
      remove_unsupported(v);
      if (!possible_ || of(v).queued) continue;
      settle_holdings(v);
      if (!possible_) return;
      remove_dominated(v);
      if (of(v).queued) continue;
      if (size(v) == 1)
        fix(v);
      else if (!eliminate(v))
        follow(v);
    }
  }

  void remove_unsupported(int v) {
    std::vector<size_t> stay;
    for (size_t x = 0; x < size(v); ++x) {
      bool finite = of(v).alone[x] < kNoFold;
      for (size_t i = 0; i < of(v).edges.size() && finite; ++i) {
        const Edge& edge = edges_[static_cast<size_t>(of(v).edges[i])];
        const int w = other(of(v).edges[i], v);
        bool supported = false;
        for (size_t y = 0; y < size(w) && !supported; ++y) supported = at(edge, v, x, y) < kNoFold;
        finite = supported;
      }
      if (finite) stay.push_back(x);
    }
    keep(v, stay);
  }

  /// Whether value `b` is never worse than `a`: it costs and holds no more, whatever the neighbours have.
  bool dominates(int v, size_t b, size_t a) {
    for (const HeldAmounts& held : of(v).held)
      if (held.amounts[b] > held.amounts[a]) return false;
    double more = of(v).alone[b] - of(v).alone[a];
    for (int e : of(v).edges) {
      const Edge& edge = edges_[static_cast<size_t>(e)];
      const size_t others = size(other(e, v));
      double most = -kNoFold;
      for (size_t y = 0; y < others; ++y) {
        const double of_a = at(edge, v, a, y);
        if (of_a < kNoFold) most = std::max(most, at(edge, v, b, y) - of_a);
      }
      more += most;
      if (more == kNoFold) return false;
    }
    return more <= 0;
  }

  void remove_dominated(int v) {
    if (size(v) > 200) return;
    std::vector<size_t> stay(size(v));
    std::iota(stay.begin(), stay.end(), size_t{0});
    for (size_t i = 0; i < stay.size();) {
      const bool worse =
          std::any_of(stay.begin(), stay.end(), [&](size_t b) { return b != stay[i] && dominates(v, b, stay[i]); });
      if (worse)
        stay.erase(stay.begin() + static_cast<std::ptrdiff_t>(i));
      else
        ++i;
    }
    keep(v, stay);
  }

  void leave(int v, FoldedTables::Step step) {
    step.variable = v;
    for (int w : step.from) step.names.push_back(of(w).names);
    steps_.push_back(std::move(step));
    const std::vector<int> edges = of(v).edges;
    for (int e : edges) {
      queue(other(e, v));
      remove_edge(e);
    }
    of(v).names = {};
    of(v).gone = true;
    of(v).alone = {};
    of(v).held = {};
  }

  void fix(int v) {
    for (int e : of(v).edges) {
      const int w = other(e, v);
      for (size_t y = 0; y < size(w); ++y) of(w).alone[y] += at(edges_[static_cast<size_t>(e)], v, 0, y);
    }
    constant_ += of(v).alone[0];
    leave(v, {-1, {}, {}, {of(v).names[0]}});
  }

  /// A variable that holds nothing, by the min-plus product of its tables.
  bool eliminate(int v) {
    if (!of(v).held.empty() || of(v).edges.size() > 2) return false;
    FoldedTables::Step step;
    size_t made = 1;
    for (int e : of(v).edges) {
      step.from.push_back(other(e, v));
      made *= size(step.from.back());
    }
    if (made > kMostMade) return false;
    const size_t columns = step.from.size() == 2 ? size(step.from[1]) : 1;
    std::vector<double> values(made, kNoFold);
    step.value.assign(made, of(v).names[0]);
    for (size_t entry = 0; entry < made; ++entry)
      for (size_t x = 0; x < size(v); ++x) {
        double sum = of(v).alone[x];
        if (!step.from.empty()) sum += at(edges_[static_cast<size_t>(of(v).edges[0])], v, x, entry / columns);
        if (step.from.size() == 2) sum += at(edges_[static_cast<size_t>(of(v).edges[1])], v, x, entry % columns);
        if (sum < values[entry]) {
          values[entry] = sum;
          step.value[entry] = of(v).names[x];
        }
      }
    const std::vector<int> from = step.from;
    leave(v, std::move(step));
    if (from.empty())
      constant_ += values[0];
    else if (from.size() == 1)
      for (size_t y = 0; y < made; ++y) of(from[0]).alone[y] += values[y];
    else
      add_edge({from[0], from[1], std::move(values)});
    return true;
  }

  /// A variable joins the neighbour from which it follows. Where each follows from the other, the one with less to
  /// move.
  void follow(int v) {
    std::vector<size_t> partner;
    for (int e : of(v).edges) {
      const int w = other(e, v);
      if (moves(w) <= moves(v) && follows(w, v, e, partner)) return join(w, e, v, partner);
      if (follows(v, w, e, partner)) return join(v, e, w, partner);
    }
  }

  size_t moves(int v) { return of(v).held.size() + of(v).edges.size(); }

  /// Whether each value of `w` leaves one of `v`: its place is then in `partner`.
  bool follows(int v, int w, int e, std::vector<size_t>& partner) {
    if (size(w) > 2 * size(v) && of(v).edges.size() > 2) return false;
    const Edge& edge = edges_[static_cast<size_t>(e)];
    partner.assign(size(w), 0);
    for (size_t y = 0; y < size(w); ++y) {
      size_t finite = 0;
      for (size_t x = 0; x < size(v) && finite < 2; ++x)
        if (at(edge, v, x, y) < kNoFold) {
          ++finite;
          partner[y] = x;
        }
      if (finite != 1) return false;
    }
    return true;
  }

  void join(int v, int by, int w, const std::vector<size_t>& partner) {
    FoldedTables::Step step;
    step.from = {w};
    for (size_t y = 0; y < size(w); ++y) {
      step.value.push_back(of(v).names[partner[y]]);
      of(w).alone[y] += of(v).alone[partner[y]] + at(edges_[static_cast<size_t>(by)], v, partner[y], y);
    }
    for (const HeldAmounts& held : of(v).held) {
      std::vector<int64_t> amounts;
      for (size_t y = 0; y < size(w); ++y) amounts.push_back(held.amounts[partner[y]]);
      hold(w, held.first, held.end, amounts);
    }
    std::vector<Edge> moved;
    for (int e : of(v).edges) {
      if (e == by) continue;
      const int u = other(e, v);
      Edge edge{w, u, {}};
      for (size_t y = 0; y < size(w); ++y)
        for (size_t z = 0; z < size(u); ++z)
          edge.values.push_back(at(edges_[static_cast<size_t>(e)], v, partner[y], z));
      moved.push_back(std::move(edge));
    }
    leave(v, std::move(step));
    for (Edge& edge : moved) add_edge(std::move(edge));
    queue_around(w);
  }

  /// Holdings over the same times become one.
  void merge_holdings() {
    for (int v = 0; v < count(); ++v) {
      const std::vector<HeldAmounts> all = std::move(of(v).held);
      of(v).held.clear();
      of(v).place.clear();
      for (const HeldAmounts& held : all)
        if (held.first < held.end) hold(v, held.first, held.end, held.amounts);
      settle_holdings(v);
    }
  }

  /// Adds these amounts to what `v` holds.
  void hold(int v, int first, int end, const std::vector<int64_t>& amounts) {
    Variable& to = of(v);
    const auto key = [](int begins, int ends) {
      return static_cast<uint64_t>(begins) << 32 | static_cast<uint64_t>(ends);
    };
    if (to.place.empty())
      for (size_t i = 0; i < to.held.size(); ++i) to.place[key(to.held[i].first, to.held[i].end)] = i;
    const auto [at, is_first] = to.place.try_emplace(key(first, end), to.held.size());
    to.settled = false;
    if (is_first)
      to.held.push_back({first, end, amounts});
    else
      for (size_t i = 0; i < amounts.size(); ++i) to.held[at->second].amounts[i] += amounts[i];
  }

  /// Removes values that hold too much even where all others hold the least. Whether there were any.
  bool too_much_memory() {
    bool any = false;
    for (int v = 0; v < count() && possible_; ++v) {
      if (of(v).gone) continue;
      std::vector<size_t> stay;
      for (size_t x = 0; x < size(v); ++x)
        if (std::all_of(of(v).held.begin(), of(v).held.end(), [&](const HeldAmounts& held) {
              return held.amounts[x] <= *std::min_element(limits_.begin() + held.first, limits_.begin() + held.end);
            }))
          stay.push_back(x);
      any = any || stay.size() < size(v);
      keep(v, stay);
    }
    return any;
  }

  /// Drops times at which the limit cannot bind, and times at which it binds only where it does at another that stays.
  void drop_times() {
    std::vector<HeldInterval> intervals;
    for (const Variable& variable : variables_)
      for (const HeldAmounts& held : variable.held)
        intervals.push_back({held.first, held.end, *std::max_element(held.amounts.begin(), held.amounts.end())});
    const std::vector<size_t> stay = binding_times(limits_, intervals);
    std::vector<int64_t> limits;
    for (size_t t : stay) limits.push_back(limits_[t]);
    const auto place = [&stay](int t) {
      return static_cast<int>(std::lower_bound(stay.begin(), stay.end(), static_cast<size_t>(t)) - stay.begin());
    };
    for (Variable& variable : variables_) {
      for (HeldAmounts& held : variable.held) {
        held.first = place(held.first);
        held.end = place(held.end);
      }
      std::erase_if(variable.held, [](const HeldAmounts& held) { return held.first >= held.end; });
      variable.settled = false;
      variable.place.clear();
    }
    limits_ = std::move(limits);
  }

  FoldedTables take() {
    FoldedTables folded;
    folded.possible = possible_;
    folded.constant = constant_;
    folded.steps = std::move(steps_);
    if (!possible_) return folded;
    std::vector<int> number(variables_.size(), -1);
    for (int v = 0; v < count(); ++v) {
      if (of(v).gone) continue;
      number[static_cast<size_t>(v)] = static_cast<int>(folded.variables.size());
      folded.variables.push_back(v);
      folded.names.push_back(of(v).names);
      folded.left.sizes.push_back(static_cast<int>(size(v)));
      folded.left.tables.push_back({{number[static_cast<size_t>(v)]}, of(v).alone});
      for (HeldAmounts& held : of(v).held)
        folded.left.holdings.push_back({number[static_cast<size_t>(v)], held.first, held.end, held.amounts});
    }
    for (Edge& edge : edges_) {
      if (edge.gone) continue;
      const int from = number[static_cast<size_t>(edge.from)], to = number[static_cast<size_t>(edge.to)];
      if (from < to) {
        folded.left.tables.push_back({{from, to}, std::move(edge.values)});
        continue;
      }
      std::vector<double> values;
      for (size_t y = 0; y < size(edge.to); ++y)
        for (size_t x = 0; x < size(edge.from); ++x) values.push_back(edge.values[x * size(edge.to) + y]);
      folded.left.tables.push_back({{to, from}, std::move(values)});
    }
    folded.left.limits = limits_;
    return folded;
  }

  std::vector<int64_t> limits_;
  std::vector<Variable> variables_;
  std::vector<Edge> edges_;
  std::deque<int> queue_;
  std::vector<FoldedTables::Step> steps_;
  double constant_ = 0;
  bool possible_ = true;
};

}  // namespace

FoldedTables fold(const LimitedTables& tables) { return Folding(tables).run(); }

std::vector<int> FoldedTables::unfold(const std::vector<int>& setting) const {
  size_t all = variables.size() + steps.size();
  std::vector<int> whole(all, 0);
  for (size_t i = 0; i < variables.size(); ++i)
    whole[static_cast<size_t>(variables[i])] = names[i][static_cast<size_t>(setting[i])];
  for (size_t s = steps.size(); s-- > 0;) {
    const Step& step = steps[s];
    size_t at = 0;
    for (size_t i = 0; i < step.from.size(); ++i) {
      const int value = whole[static_cast<size_t>(step.from[i])];
      const auto place = std::find(step.names[i].begin(), step.names[i].end(), value) - step.names[i].begin();
      at = at * step.names[i].size() + static_cast<size_t>(place);
    }
    whole[static_cast<size_t>(step.variable)] = step.value[at];
  }
  return whole;
}

}  // namespace trainctl
