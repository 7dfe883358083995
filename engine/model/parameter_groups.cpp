// Determines which parameters are trained, and which of optimizer.groups sets each parameter's optimizer.
#include "engine/model/parameter_groups.h"

#include <algorithm>
#include <map>

#include "engine/base/name_pattern.h"
#include "engine/base/text.h"
#include "engine/spec/adapters.h"

namespace trainctl {
namespace {

std::string unused_hint(const std::string& pattern, const std::vector<std::string>& names) {
  const std::string guess = did_you_mean(pattern, names);
  if (!guess.empty()) return guess;
  constexpr size_t kShown = 12;
  std::vector<std::string> shown = names;
  shown.resize(std::min(shown.size(), kShown));
  return names.empty() ? "the network has no parameters"
                       : "parameters: " + join(shown) + (names.size() > kShown ? ", ..." : "");
}

std::vector<std::string> parameter_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Tensor& tensor : graph.tensors)
    if (tensor.kind == TensorKind::parameter) names.push_back(tensor.name);
  return names;
}

bool matches_name(const std::string& pattern, const std::string& name) {
  return name == pattern || name_matches(pattern, name);
}

}  // namespace

std::vector<Diagnostic> freeze_parameters(const JobSpec& spec, Graph& graph) {
  std::vector<Diagnostic> errors;
  bool trains = false;
  std::vector<bool> used(spec.train.freeze.size(), false);
  for (Tensor& tensor : graph.tensors) {
    if (tensor.kind != TensorKind::parameter) continue;
    tensor.frozen = is_frozen(spec, tensor.name);
    tensor.is_base = tensor.frozen && saves_without_base(spec);
    for (size_t p = 0; p < used.size(); ++p) used[p] = used[p] || matches_name(spec.train.freeze[p], tensor.name);
    trains = trains || !tensor.frozen;
  }
  for (size_t p = 0; p < used.size(); ++p) {
    if (used[p]) continue;
    const std::string path = "train.freeze[" + std::to_string(p) + "]";
    errors.push_back({spec.position(path), path, "no parameter matches '" + spec.train.freeze[p] + "'",
                      unused_hint(spec.train.freeze[p], parameter_names(graph))});
  }
  if (errors.empty() && !used.empty() && !trains && graph.has_loss())
    errors.push_back({spec.position("train.freeze"), "train.freeze", "all parameters are frozen, so nothing is trained",
                      "freeze fewer of them"});
  return errors;
}

std::vector<Diagnostic> set_parameter_groups(const JobSpec& spec, Graph& graph) {
  const std::vector<std::string> names = parameter_names(graph);
  std::vector<Diagnostic> errors;
  std::map<std::string, int, std::less<>> group_of;
  for (size_t g = 0; g < spec.optimizer.groups.size(); ++g) {
    const ParameterGroup& group = spec.optimizer.groups[g];
    for (size_t p = 0; p < group.patterns.size(); ++p) {
      const std::string& pattern = group.patterns[p];
      bool matches = false, decides = false;
      for (const std::string& name : names) {
        if (!matches_name(pattern, name)) continue;
        matches = true;
        const auto [known, added] = group_of.emplace(name, static_cast<int>(g));
        decides = decides || added || known->second == static_cast<int>(g);
      }
      if (decides) continue;
      std::string path = group.path + ".parameters[" + std::to_string(p) + "]";
      if (!spec.positions.contains(path)) path = group.path + ".parameters";
      const std::string message = matches ? "all parameters that match '" + pattern + "' belong to earlier groups"
                                          : "no parameter matches '" + pattern + "'";
      errors.push_back({spec.position(path), path, message,
                        matches ? "remove this pattern, or move the group before them" : unused_hint(pattern, names)});
    }
  }
  for (Update& update : graph.updates) {
    const auto group = group_of.find(graph.tensors[static_cast<size_t>(update.parameter)].name);
    update.group = group == group_of.end() ? -1 : group->second;
  }
  return errors;
}

}  // namespace trainctl
