// Bytes that ranks hold between the forward and the backward pass, by the cuts of the layers.
#pragma once

#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/traffic/traffic.h"
#include "engine/search/cuts/cut_network.h"

namespace trainctl {

/// Bytes of the tensors that a unit makes and its layer's backward pass, or another's, reads; of what it reads of the
/// data set; and of its parameters.
struct Held {
  struct Part {
    double bytes = 0;
    std::vector<int> factors;  // that cut it
    bool apart = false;        // has a buffer of its own
  };
  std::vector<Part> parts;
};

/// Bytes that a buffer of its own takes in an arena.
double in_arena(double bytes);

/// By unit. `bytes_per_weight`: bytes of each element of a parameter.
std::vector<Held> held_by_unit(const CutNetwork& network, double bytes_per_weight);

/// By layer: bytes that a rank keeps of one micro-batch from the forward to the backward pass. What backward passes
/// read in several layouts is kept in each of them.
std::vector<double> kept_bytes(const Graph& graph, const Mesh& mesh, const std::vector<FactorAxes>& of_layer);

}  // namespace trainctl
