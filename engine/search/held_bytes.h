// What ranks hold between the forward and the backward pass, by the cuts of the layers.
#pragma once

#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/traffic.h"
#include "engine/search/cut_network.h"

namespace trainctl {

/// Bytes of the tensors that a unit makes and its layer's backward pass, or another's, reads; and of its parameters.
struct Held {
  struct Part {
    double bytes = 0;
    std::vector<int> factors;  // that cut it
  };
  std::vector<Part> parts;
};

/// By unit. `bytes_per_weight`: of each element of a parameter.
std::vector<Held> held_by_unit(const CutNetwork& network, double bytes_per_weight);

/// By layer: bytes that a rank keeps of one micro-batch from the forward to the backward pass.
std::vector<double> kept_bytes(const Graph& graph, const Mesh& mesh, const std::vector<FactorAxes>& of_layer);

}  // namespace trainctl
