// Chooses which of cuBLASLt's algorithms computes a product: the fastest of its suggestions, measured once on a
// machine and remembered.
// The choice is kept in the file `products` (device_choices_cuda.h). If it cannot be written, the library's first
// suggestion is taken unmeasured.
// Algorithms that split k across blocks and add in the order in which blocks end are never taken.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/ops/matmul/cublaslt_cuda.h"

namespace trainctl::cuda {

/// Milliseconds of one run of a candidate; negative: it could not run.
using MeasureAlgorithm = std::function<float(const cublasLtMatmulHeuristicResult_t& candidate)>;

/// Index of the candidate to use. `product` encodes everything that a choice may depend on. Candidates are the
/// library's suggestions, best first, and are the same in each process on this machine.
size_t choose_algorithm(const std::string& product, const std::vector<cublasLtMatmulHeuristicResult_t>& candidates,
                        const MeasureAlgorithm& measure);

}  // namespace trainctl::cuda
