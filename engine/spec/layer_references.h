// Names and patterns of layers in a job, outside of its network: `print`, `loss.input`, `parallel.recompute`.
#pragma once

#include <set>
#include <string>

#include "engine/spec/job_spec.h"
#include "engine/spec/network.h"
#include "engine/spec/problems.h"

namespace trainctl {

/// All arguments must outlive it. The network must not change after the first question.
class LayerReferences {
 public:
  LayerReferences(const JobSpec& job, const Network& network, Problems& problems)
      : job_(job), network_(network), problems_(problems) {}

  /// Replaces the name of a layer, as the job writes it, by that of its output.
  void replace_by_output(std::string& name, const std::string& path);
  /// If a layer of this name has several outputs, reports that one of them must be named, and returns true.
  bool refuse_several(const std::string& name, const SourcePos& pos, const std::string& path);
  /// Reports a name or glob that matches no layer. The loss counts as a layer named "loss".
  void demand_match(const std::string& pattern, const SourcePos& pos, const std::string& path);

 private:
  bool matches(const std::string& pattern);
  /// The layer that has this as one of several outputs; "" if none has.
  std::string layer_of_output(const std::string& name) const;
  /// A hint: the layer that may have been meant, or the first layers.
  std::string nearest_layer(const std::string& pattern) const;

  const JobSpec& job_;
  const Network& network_;
  Problems& problems_;
  std::set<std::string> layer_names_;  ///< names of all layers, also of those that a layer or an adapter adds
};

}  // namespace trainctl
