// Device work around cuBLASLt's products: factors in device memory, and trial runs on copies of the operands.
#pragma once

#include <functional>
#include <optional>

#include "engine/ops/cuda/trial_cuda.h"
#include "engine/ops/matmul/product_cuda.h"

namespace trainctl::cuda {

/// scalars[0] = -*rate, scalars[1] = 1: the factors of a fused SGD step.
void write_descent_scalars(const float* rate, float* scalars, CudaStream stream);

/// Trial runs of a product on operands of its sizes, filled with pseudo-random numbers. If the device has no memory for
/// them, every run fails. A product that descends finds its factors in device memory.
class ProductTrial {
 public:
  ProductTrial(const Product& product, size_t workspace_bytes);

  /// The product with all operands in the trial's memory.
  const Product& product() const { return product_; }

  /// Enqueues product() once; false: it is refused.
  using Run = std::function<bool(const void* alpha, const void* beta, void* workspace, CudaStream stream)>;
  /// Milliseconds of one run; negative: it fails.
  float milliseconds(const Run& run);
  /// A digest of everything that the run writes; nothing: it fails. Small products run on several sets of operands, so
  /// that a run that adds in another order has another digest.
  std::optional<uint64_t> bits(const Run& run);

 private:
  bool once(const Run& run, CudaStream stream);

  Product product_;
  Trial trial_;
  std::vector<Trial::Range> results_;
  void* workspace_ = nullptr;
};

}  // namespace trainctl::cuda
