// Chooses which of cuBLASLt's algorithms computes a product: the fastest of its suggestions, measured once on a machine
// and remembered, or the first one if the product is too small to measure. Suggestions may differ from process to
// process, so a remembered algorithm is restored from its bytes and need not be among them.
// The choice is kept in the file `products` (device_choices_cuda.h). If it cannot be written, the library's first
// suggestion is taken unmeasured.
// Algorithms that split k across blocks and add in the order in which blocks end are never taken.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/ops/matmul/cublaslt_cuda.h"

namespace trainctl::cuda {

/// Milliseconds of one run of an algorithm; negative: it could not run.
using MeasureAlgorithm = std::function<float(const cublasLtMatmulAlgo_t&)>;

/// Questions about an algorithm of a product.
struct AlgorithmTrial {
  MeasureAlgorithm milliseconds;  ///< empty: the product is too small to measure
  /// Returns whether the library can compute the product with an algorithm that it does not suggest.
  std::function<bool(const cublasLtMatmulAlgo_t&)> can_run;
};

/// Returns the algorithm to use. `product` encodes everything that a choice may depend on. `candidates`: the library's
/// suggestions, at least one, best first. If the library refuses the kept algorithm, this is reported once on stderr
/// and the first candidate is used.
cublasLtMatmulAlgo_t choose_algorithm(const std::string& product, const std::vector<cublasLtMatmulAlgo_t>& candidates,
                                      const AlgorithmTrial& trial);

}  // namespace trainctl::cuda
