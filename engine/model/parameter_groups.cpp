// See the header.
#include "engine/model/parameter_groups.h"

#include <algorithm>
#include <map>

#include "engine/base/text.h"

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

}  // namespace

std::vector<Diagnostic> set_parameter_groups(const JobSpec& spec, Graph& graph) {
  std::vector<std::string> names;
  for (const Tensor& tensor : graph.tensors)
    if (tensor.kind == TensorKind::parameter) names.push_back(tensor.name);
  std::vector<Diagnostic> errors;
  std::map<std::string, int, std::less<>> group_of;
  for (size_t g = 0; g < spec.optimizer.groups.size(); ++g) {
    const ParameterGroup& group = spec.optimizer.groups[g];
    for (size_t p = 0; p < group.patterns.size(); ++p) {
      const std::string& pattern = group.patterns[p];
      bool matches = false, decides = false;
      for (const std::string& name : names) {
        if (name != pattern && !glob_match(pattern, name)) continue;
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
