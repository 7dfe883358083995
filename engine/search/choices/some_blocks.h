// Recomputing in some of the repeated blocks: between two ways to recompute, memory and time are linear in the number
// of blocks that use the second one.
#pragma once

#include <string>
#include <vector>

#include "engine/search/choices/open_choices.h"
#include "engine/search/cuts/repeats.h"

namespace trainctl {

/// The number of blocks of all runs.
int num_blocks(const Repeats& repeats);

/// Rules that recompute in every block what `less` names, and in `count` blocks also what `more` names. Both are
/// recompute_ways of `network`. With `spread` these blocks are evenly distributed, as for the stages of a pipeline;
/// otherwise they are the first: when the backward pass computes them again, the activations of all others are gone.
Recompute recompute_of_some(const std::vector<LayerSpec>& network, const Repeats& repeats, const Recompute& less,
                            const Recompute& more, int count, bool spread);

}  // namespace trainctl
