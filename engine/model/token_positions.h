// Finds the dim of each tensor that the positions of tokens are in, and changes their number.
#pragma once

#include <cstdint>

#include "engine/graph/graph.h"

namespace trainctl {

/// Each integer input of the graph is [rows, whole]. Afterwards the graph computes `tokens` positions. SpecError at a
/// layer that computes over positions, except causal attention, or that has a parameter for each position.
void set_token_count(Graph& graph, int64_t whole, int64_t tokens);

}  // namespace trainctl
