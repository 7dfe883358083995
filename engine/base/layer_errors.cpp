// Errors about layers, where the same may be wrong with many of them: those of a glob, the copies of a module.
#include "engine/base/layer_errors.h"

#include <algorithm>
#include <utility>

#include "engine/base/text.h"

namespace trainctl {
namespace {

bool same(const Diagnostic& a, const Diagnostic& b) {
  return a.pos == b.pos && a.path == b.path && a.message == b.message && a.hint == b.hint;
}

/// "11 more layers: h.1.fc, h.2.fc, h.3.fc, ...": all but the first.
std::string more_layers(const std::vector<std::string>& layers) {
  constexpr size_t kShown = 3;
  std::vector<std::string> shown(layers.begin() + 1, layers.end());
  const std::string count = std::to_string(shown.size()) + (shown.size() == 1 ? " more layer: " : " more layers: ");
  if (shown.size() <= kShown) return count + join(shown);
  shown.resize(kShown);
  return count + join(shown) + ", ...";
}

}  // namespace

void LayerErrors::add(Diagnostic error, const std::string& layer) {
  const auto known = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& e) { return !e.layers.empty() && same(e.error, error); });
  if (known == entries_.end())
    entries_.push_back({std::move(error), {layer}});
  else if (std::find(known->layers.begin(), known->layers.end(), layer) == known->layers.end())
    known->layers.push_back(layer);
}

std::vector<Diagnostic> LayerErrors::take() {
  std::vector<Diagnostic> errors;
  for (Entry& entry : std::exchange(entries_, {})) {
    if (!entry.layers.empty()) {
      entry.error.message = "layer " + entry.layers[0] + ": " + entry.error.message;
      if (entry.layers.size() > 1) entry.error.message += "; and " + more_layers(entry.layers);
    }
    errors.push_back(std::move(entry.error));
  }
  return errors;
}

}  // namespace trainctl
