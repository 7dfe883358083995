// Which of cuBLASLt's algorithms computes a product: the fastest of the library's suggestions, measured once on a
// machine and remembered.
//
// Two algorithms may add in different orders, so the choice must be the same each time: otherwise two runs of a job
// would differ in their last bits. It is kept in a file, one for each GPU model, driver and library version:
//     $XDG_CACHE_HOME/trainctl/products/<GPU>-<driver>-<library>        (~/.cache if that is unset)
// A process that does not find a product there measures it while it holds the file's lock, so all ranks of a host
// choose alike. If the file cannot be written, the library's first suggestion is taken unmeasured.
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
