// Chooses which of cuBLASLt's algorithms computes a product: the fastest of its suggestions that compute the same bits
// as the first one, measured once on a machine and remembered. So a product has the same bits whatever was measured, in
// each process and on each machine with GPUs of one model.
// The choice is kept in the file `products` (device_choices_cuda.h). If it cannot be written, the library's first
// suggestion is taken unmeasured.
// Algorithms that split k across blocks and add in the order in which blocks end are never taken.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/ops/matmul/cublaslt_cuda.h"

namespace trainctl::cuda {

/// What is asked about an algorithm of a product.
struct AlgorithmTrial {
  /// Milliseconds of one run; negative: it could not run.
  std::function<float(const cublasLtMatmulAlgo_t&)> milliseconds;
  /// A digest of its results for given operands; nothing: it could not run.
  std::function<std::optional<uint64_t>(const cublasLtMatmulAlgo_t&)> bits;
  /// Returns whether the library can compute the product with it.
  std::function<bool(const cublasLtMatmulAlgo_t&)> can_run;
};

/// The algorithm to use. `product` encodes everything that a choice may depend on. `candidates`: the library's
/// suggestions, at least one, best first. A kept algorithm need not be among them: it is restored from its bytes. If
/// the library refuses it, the first candidate is used, which has the same bits.
cublasLtMatmulAlgo_t choose_algorithm(const std::string& product, const std::vector<cublasLtMatmulAlgo_t>& candidates,
                                      const AlgorithmTrial& trial);

}  // namespace trainctl::cuda
