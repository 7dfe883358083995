// Which of cuBLASLt's algorithms makes a product: the fastest of the library's own suggestions, measured once on
// a machine and kept.
//
// Two algorithms may add in different orders, so the choice must be the same each time or a job run twice would
// differ in its last bits. So it is kept in a file of the machine's, one for each kind of GPU, driver and version
// of the library:  $XDG_CACHE_HOME/trainctl/products/<GPU>-<driver>-<library>  (~/.cache where that is unset).
// Whoever finds a product missing there measures it while holding the file's lock; all ranks of a host take the
// same. Where no such file can be written the library's first suggestion is taken unmeasured.
// Algorithms that split k across blocks and add in whatever order those end are never taken.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/ops/matmul/cublaslt_cuda.h"

namespace trainctl::cuda {

/// Milliseconds of a run of a candidate; below zero: it could not be run.
using MeasureAlgorithm = std::function<float(const cublasLtMatmulHeuristicResult_t& candidate)>;

/// Index of the one to take. `product` says all that a choice may depend on. Candidates are the library's
/// suggestions, best first, and are the same in each process on this machine.
size_t choose_algorithm(const std::string& product, const std::vector<cublasLtMatmulHeuristicResult_t>& candidates,
                        const MeasureAlgorithm& measure);

}  // namespace trainctl::cuda
