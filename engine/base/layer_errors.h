// Errors about layers, where the same may be wrong with many of them: those of a glob, the copies of a module.
#pragma once

#include <string>
#include <vector>

#include "engine/base/error.h"

namespace trainctl {

class LayerErrors {
 public:
  /// An error that concerns no layer.
  void add(Diagnostic error) { entries_.push_back({std::move(error), {}}); }
  /// `error.message` does not name the layer. The same error of another layer, at the same place, becomes part of
  /// the first: "layer h.0.fc: …; and 11 more layers: h.1.fc, h.2.fc, h.3.fc, ...".
  void add(Diagnostic error, const std::string& layer);

  bool empty() const { return entries_.empty(); }
  std::vector<Diagnostic> take();

 private:
  struct Entry {
    Diagnostic error;
    std::vector<std::string> layers;
  };
  std::vector<Entry> entries_;
};

}  // namespace trainctl
