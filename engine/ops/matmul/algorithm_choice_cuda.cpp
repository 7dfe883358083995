// Chooses which of cuBLASLt's algorithms computes a product, once on a machine, and remembers it.
#include "engine/ops/matmul/algorithm_choice_cuda.h"

#include <optional>
#include <span>

#include "engine/ops/cuda/device_choices_cuda.h"
#include "engine/ops/cuda/fastest.h"
#include "engine/ops/cuda/hexadecimal.h"
#include "engine/ops/cuda/print_once.h"

namespace trainctl::cuda {
namespace {

std::string text_of(const cublasLtMatmulAlgo_t& algorithm) {
  return hexadecimal(std::as_bytes(std::span(algorithm.data)));
}

/// Nothing if the text is not that of an algorithm.
std::optional<cublasLtMatmulAlgo_t> parse(const std::string& text) {
  cublasLtMatmulAlgo_t algorithm{};
  if (!read_hexadecimal(text, std::as_writable_bytes(std::span(algorithm.data)))) return std::nullopt;
  return algorithm;
}

}  // namespace

cublasLtMatmulAlgo_t choose_algorithm(const std::string& product, const std::vector<cublasLtMatmulAlgo_t>& candidates,
                                      const AlgorithmTrial& trial) {
  const cublasLtMatmulAlgo_t& first = candidates.at(0);
  KeptChoices& kept = choices_of_device("products", std::to_string(cublaslt().version()));
  const std::string chosen = kept.find_or_make(product, text_of(first), [&] {
    if (!trial.milliseconds || candidates.size() < 2) return text_of(first);
    return text_of(candidates[fastest(candidates.size(), [&](size_t i) { return trial.milliseconds(candidates[i]); })]);
  });
  for (const cublasLtMatmulAlgo_t& candidate : candidates)
    if (text_of(candidate) == chosen) return candidate;
  const std::optional<cublasLtMatmulAlgo_t> algorithm = parse(chosen);
  if (algorithm && trial.can_run(*algorithm)) return *algorithm;
  print_once("cuBLASLt refuses the kept algorithm of the product " + product +
             ", so its first suggestion is used: results may differ by rounding from those of other runs; delete the "
             "file of kept choices (docs/gpus.md) to measure again");
  return first;
}

}  // namespace trainctl::cuda
