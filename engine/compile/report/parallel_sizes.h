// A plan as a product of data x tensor x context x pipeline parallelism, the terms of Megatron-LM, if it is one.
#pragma once

#include <optional>

#include "engine/plan/plan.h"

namespace trainctl {

struct ParallelSizes {
  int data = 1;     ///< ways in which the rows of a micro-batch are cut
  int tensor = 1;   ///< ways in which weights are cut
  int context = 1;  ///< ways in which sequences, or the rows of images, are cut in layers whose weights are whole
  int pipeline = 1;
  int replicas = 1;                ///< ranks along axes that cut nothing: they compute the same values
  bool sequence_parallel = false;  ///< between layers with cut weights, the tensor axes cut sequences
};

/// Returns nullopt if an axis of the mesh has one role in some layers and another role in others, or if the user
/// decides what each rank computes (hybrid_parallel). Layers with products and weights determine the roles.
std::optional<ParallelSizes> parallel_sizes(const Graph& graph, const Plan& plan);

}  // namespace trainctl
