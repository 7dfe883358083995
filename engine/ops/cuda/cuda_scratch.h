// How much CudaScratch (cuda_kernel.h) a kernel may ask for, said without CUDA: so that a plan can show it, and the
// executor takes what was shown.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/graph/shape.h"

namespace trainctl {

/// cuBLASLt's workspace, as its manual advises for Hopper.
inline constexpr int64_t kProductWorkspace = int64_t{32} << 20;

/// The most that the CUDA kernel of the name asks for on any card, for operands of these shapes.
int64_t most_cuda_scratch(std::string_view kernel, const std::vector<Shape>& inputs, const std::vector<Shape>& outputs);

}  // namespace trainctl
