// Finds units whose choices of axes depend on the same things. Each unit is described as a string of numbers that refer
// to other units by their distance from it; units with equal strings are interchangeable.
#include "engine/plan/axes/surroundings.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "engine/plan/numbers_text.h"

namespace trainctl {
namespace {

class Kinds {
 public:
  int of(const std::string& description) {
    return known_.try_emplace(description, static_cast<int>(known_.size())).first->second;
  }

 private:
  std::unordered_map<std::string, int> known_;
};

void put(std::string& out, const TensorRule& rule) {
  put_number(out, static_cast<int64_t>(rule.size()));
  for (const DimRule& dim : rule) put_numbers(out, dim);
}

void put(std::string& out, const std::vector<TensorRule>& rules) {
  put_number(out, static_cast<int64_t>(rules.size()));
  for (const TensorRule& rule : rules) put(out, rule);
}

void put(std::string& out, const Link& link, int unit) {
  put_number(out, link.from - unit);
  put_number(out, link.to - unit);
  put_number(out, link.output);
  put(out, link.made);
  put(out, link.read);
  put(out, link.from_rule.inputs);
  put(out, link.from_rule.outputs);
  put_numbers(out, link.from_rule.inner);
}

}  // namespace

std::vector<int> unit_kinds(const Graph& graph, const std::vector<LayerFacts>& facts, const Units& units,
                            const Links& links, const Traffic& traffic) {
  Kinds kinds;
  std::vector<int> kind_of_unit;
  for (int u = 0; u < static_cast<int>(units.all.size()); ++u) {
    const LayerId l = units.all[u].layer;
    const Layer& layer = graph.layers[l];
    std::string text;
    for (const Factor& factor : layer.factors) put_number(text, factor.size);
    for (const std::string& why_not : facts[l].why_not) put_number(text, why_not.empty());
    put(text, layer.output_rules);
    put_numbers(text, facts[l].inner);
    put_number(text, facts[l].batch_factor);
    put_number(text, units.all[u].finishes());
    put_number(text, links.passes_through[u] + 2 * links.only_follows[u]);
    for (const Link& link : links.in[u]) put(text, link, u);
    put_number(text, -1);
    for (const Link& link : links.out[u]) put(text, link, u);
    traffic.describe(u, text);
    kind_of_unit.push_back(kinds.of(text));
  }
  return kind_of_unit;
}

std::vector<Surroundings> find_surroundings(const std::vector<int>& kinds, const Units& units, const Links& links,
                                            const std::vector<std::optional<LayerStrategy>>& strategies,
                                            const Traffic& traffic) {
  const auto has_strategy = [&](int u) {
    return strategies[static_cast<size_t>(units.all[u].layer)] && !units.all[u].finishes();
  };
  Kinds kinds_with_strategies, group_kinds;
  std::vector<int> kind_of_unit;
  for (int u = 0; u < static_cast<int>(units.all.size()); ++u) {
    std::string text;
    put_number(text, kinds[static_cast<size_t>(u)]);
    if (has_strategy(u)) {
      const LayerStrategy& strategy = *strategies[static_cast<size_t>(units.all[u].layer)];
      put_numbers(text, strategy.factor_ways);
      for (const Axes& axes : strategy.axes) put_numbers(text, axes);
    }
    kind_of_unit.push_back(kinds_with_strategies.of(text));
  }
  std::vector<Surroundings> all;
  for (int u = 0; u < static_cast<int>(units.all.size()); ++u) {
    Surroundings& here = all.emplace_back(Surroundings{{u}, {}, 0});
    for (size_t i = 0; i < here.group.size(); ++i)
      for (const Link& link : links.out[here.group[i]])
        if (links.only_follows[link.to] && !has_strategy(link.to)) here.group.push_back(link.to);
    for (int member : here.group) {
      here.units.push_back(member);
      for (const Link& link : links.in[member]) here.units.push_back(link.from);
      for (const Link& link : links.out[member]) here.units.push_back(link.to);
      const std::vector<int> beside = traffic.units_beside(member);
      here.units.insert(here.units.end(), beside.begin(), beside.end());
    }
    std::sort(here.units.begin(), here.units.end());
    here.units.erase(std::unique(here.units.begin(), here.units.end()), here.units.end());
    std::string text;
    for (int member : here.group) put_number(text, member - u);
    for (int unit : here.units) {
      put_number(text, unit - u);
      put_number(text, kind_of_unit[unit]);
    }
    here.kind = group_kinds.of(text);
  }
  return all;
}

}  // namespace trainctl
