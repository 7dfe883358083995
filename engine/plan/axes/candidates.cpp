// Maps layouts onto a layer's factors, and spreads cuts over axes by backtracking.
#include "engine/plan/axes/candidates.h"

#include <fmt/format.h>

#include <algorithm>

namespace trainctl {
namespace {

class Spread {
 public:
  /// `order[f]`: the axes to try for factor f, best first.
  Spread(const Mesh& mesh, const std::vector<int64_t>& ways, std::vector<Axes> order, size_t limit)
      : mesh_(mesh), ways_(ways), order_(std::move(order)), limit_(limit), taken_(mesh.num_axes(), false) {}

  std::vector<FactorAxes> all() {
    axes_.resize(ways_.size());
    place(0, ways_.empty() ? 1 : ways_[0]);
    return std::move(found_);
  }

 private:
  /// Backtracking: gives factor `factor` axes whose sizes multiply to `rest`, in all ways that order_ permits, then
  /// continues with the next factor. Complete assignments are added to found_.
  void place(size_t factor, int64_t rest) {
    if (found_.size() >= limit_) return;
    if (factor == ways_.size()) {
      found_.push_back(axes_);
      return;
    }
    if (rest == 1) {
      place(factor + 1, factor + 1 < ways_.size() ? ways_[factor + 1] : 1);
      return;
    }
    for (Axis a : order_[factor]) {
      if (taken_[a] || rest % mesh_.axis_size(a) != 0) continue;
      taken_[a] = true;
      axes_[factor].push_back(a);
      place(factor, rest / mesh_.axis_size(a));
      axes_[factor].pop_back();
      taken_[a] = false;
    }
  }

  const Mesh& mesh_;
  const std::vector<int64_t>& ways_;
  const std::vector<Axes> order_;
  const size_t limit_;
  std::vector<bool> taken_;
  FactorAxes axes_;
  std::vector<FactorAxes> found_;
};

Axes all_axes(const Mesh& mesh) {
  Axes axes;
  for (Axis a = 0; a < mesh.num_axes(); ++a) axes.push_back(a);
  return axes;
}

bool has(const Axes& axes, Axis axis) { return std::find(axes.begin(), axes.end(), axis) != axes.end(); }

}  // namespace

/// For each dim, takes the leading axes of the layout that divide the size of its factor.
Following follow(const Mesh& mesh, const Layer& layer, const LayerFacts& facts, const TensorRule& rule,
                 const Layout& layout) {
  Following result;
  result.axes.resize(layer.factors.size());
  for (size_t d = 0; d < rule.size(); ++d) {
    if (layout.dims[d].empty()) continue;
    const int factor = cut_factor(rule[d], layer.factors);
    if (factor < 0 || !facts.why_not[factor].empty()) {
      result.whole = false;
      continue;
    }
    Axes kept;
    for (Axis a : layout.dims[d]) {
      kept.push_back(a);
      if (layer.factors[factor].size % mesh.ways(kept) == 0) continue;
      kept.pop_back();
      result.whole = false;
      break;
    }
    result.axes[factor] = kept;
  }
  return result;
}

FactorAxes data_parallel_axes(const Mesh& mesh, const Layer& layer, const LayerFacts& facts) {
  FactorAxes axes(layer.factors.size());
  const int batch = facts.batch_factor;
  if (batch >= 0 && facts.why_not[batch].empty()) {
    axes[batch] = largest_cut(mesh, all_axes(mesh), layer.factors[batch].size);
  }
  return axes;
}

std::string data_parallel_reason(const Mesh& mesh, const Layer& layer, const LayerFacts& facts) {
  const int batch = facts.batch_factor;
  if (batch < 0) return "it has no batch dim, so every rank computes the whole layer";
  if (!facts.why_not[batch].empty()) return "its batch dim cannot be cut: " + facts.why_not[batch];
  return fmt::format("data parallel: {} rows {}", layer.factors[batch].size,
                     cut_text(mesh.ways(data_parallel_axes(mesh, layer, facts)[batch])));
}

FactorAxes without_contractions(const Layer& layer, FactorAxes axes) {
  for (int f = 0; f < static_cast<int>(axes.size()); ++f) {
    bool in_output = false;
    for (const TensorRule& rule : layer.output_rules) {
      for (const DimRule& dim : rule) in_output = in_output || std::find(dim.begin(), dim.end(), f) != dim.end();
    }
    if (!in_output) axes[f].clear();
  }
  return axes;
}

FactorAxes without_inner_sums(const std::vector<int>& inner, FactorAxes axes) {
  for (int f : inner) axes[f].clear();
  return axes;
}

std::vector<FactorAxes> assignments(const Mesh& mesh, const std::vector<int64_t>& factor_ways, size_t limit) {
  return Spread(mesh, factor_ways, std::vector<Axes>(factor_ways.size(), all_axes(mesh)), limit).all();
}

std::vector<FactorAxes> nearest_assignment(const Mesh& mesh, const std::vector<int64_t>& factor_ways,
                                           const FactorAxes& wish) {
  // A factor first takes the axes that it wishes for, then axes that no factor wishes for, and only then axes that
  // other factors wish for.
  Axes wished;
  for (const Axes& axes : wish) wished.insert(wished.end(), axes.begin(), axes.end());
  Axes rest;
  for (Axis a : all_axes(mesh)) {
    if (!has(wished, a)) rest.push_back(a);
  }
  for (Axis a : all_axes(mesh)) {
    if (has(wished, a)) rest.push_back(a);
  }
  std::vector<Axes> order;
  for (size_t f = 0; f < factor_ways.size(); ++f) {
    order.push_back(wish[f]);
    for (Axis a : rest) {
      if (!has(wish[f], a)) order.back().push_back(a);
    }
  }
  return Spread(mesh, factor_ways, std::move(order), 1).all();
}

}  // namespace trainctl
