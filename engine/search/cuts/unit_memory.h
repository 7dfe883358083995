// Bytes that a rank keeps in memory between the forward and the backward pass, by the cuts of the layers.
#pragma once

#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/traffic/traffic.h"
#include "engine/search/cuts/cut_network.h"

namespace trainctl {

/// The bytes of a unit's outputs that a backward pass reads, its inputs from the data set, and its parameters.
struct UnitMemory {
  struct Part {
    double bytes = 0;
    std::vector<int> factors;  // that cut it
    bool has_own_buffer = false;
  };
  std::vector<Part> parts;
};

/// Bytes of one element of a parameter and what belongs to it: gradients and the optimizer's state if it is trained.
struct BytesPerWeight {
  double trained = 16, frozen = 4;
};

/// Bytes that a separate buffer takes in an arena.
double in_arena(double bytes);

/// Returns the memory of each unit.
std::vector<UnitMemory> memory_by_unit(const CutNetwork& network, const BytesPerWeight& bytes);

/// Returns for each layer the bytes that a rank keeps per micro-batch from the forward to the backward pass. A tensor
/// that backward nodes read in several layouts is kept in each of them.
std::vector<double> kept_bytes(const Graph& graph, const Mesh& mesh, const std::vector<FactorAxes>& of_layer);

}  // namespace trainctl
