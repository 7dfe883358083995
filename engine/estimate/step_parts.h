// The parts of a step's time: what its instructions are for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/compile/program.h"

namespace trainctl {

/// The kinds of work that the time of a step is spent on.
enum class Part : uint8_t {
  products,       ///< products of matrices, convolutions, attention
  other_kernels,  ///< the rest: bound by memory
  redistribute,   ///< collectives between layouts, and statistics of cut dims
  gradients,      ///< sums of gradients, and norms of them
  weights,        ///< gathers of weights
  pipeline,       ///< sends between stages
  data,           ///< loads, prints
  host,           ///< work of the host between two steps
  offload,        ///< copies of activations to the memory of the host, and back
};
inline constexpr size_t kParts = 9;
std::string_view to_string(Part part);
Part part_of(const Instruction& instruction);

}  // namespace trainctl
