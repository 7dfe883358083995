// Chooses which of cuBLASLt's algorithms computes a product: the fastest of its suggestions, measured once on a
// machine and remembered.
#include "engine/ops/matmul/algorithm_choice_cuda.h"

#include <algorithm>
#include <cstring>

#include "engine/ops/cuda/device_choices_cuda.h"

namespace trainctl::cuda {
namespace {

/// Returns the algorithm's bytes in hexadecimal.
std::string text_of(const cublasLtMatmulAlgo_t& algorithm) {
  unsigned char bytes[sizeof(algorithm.data)];
  std::memcpy(bytes, algorithm.data, sizeof(bytes));
  std::string text;
  for (unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte / 16];
    text += "0123456789abcdef"[byte % 16];
  }
  return text;
}

}  // namespace

size_t choose_algorithm(const std::string& product, const std::vector<cublasLtMatmulHeuristicResult_t>& candidates,
                        const MeasureAlgorithm& measure) {
  if (candidates.size() < 2) return 0;
  KeptChoices& kept = choices_of_device("products", std::to_string(cublaslt().version()));
  const std::string chosen = kept.find_or_make(product, text_of(candidates[0].algo), [&] {
    const auto time = [&](size_t i) { return measure(candidates[i]); };
    return text_of(candidates[fastest(candidates.size(), time)].algo);
  });
  const auto is_chosen = [&](const auto& candidate) { return text_of(candidate.algo) == chosen; };
  const auto found = std::find_if(candidates.begin(), candidates.end(), is_chosen);
  return found == candidates.end() ? 0 : static_cast<size_t>(found - candidates.begin());
}

}  // namespace trainctl::cuda
