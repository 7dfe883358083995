// Shared by tests that call kernels directly: tensors in device memory, and the error of results.
#pragma once

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/random.h"

namespace trainctl {

inline void must(cudaError_t status) { REQUIRE_MESSAGE(status == cudaSuccess, cudaGetErrorString(status)); }

/// Tensors one after another in device memory. Each begins at a multiple of 16 bytes, or 4 bytes past one.
class Tensors {
 public:
  explicit Tensors(bool aligned) : shift_(aligned ? 0 : 1) {}
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;
  ~Tensors() { cudaFree(device_); }

  /// Adds a tensor of random numbers of this size. With a `size` of 0 the tensor is filled with NaN, so a kernel must
  /// write it.
  int add(Shape shape, float size, DType dtype = DType::f32) {
    const int64_t n = num_elements(shape), words = dtype == DType::bf16 ? (n + 1) / 2 : n;
    const auto first = static_cast<int64_t>(host_.size()) + shift_;
    host_.resize(static_cast<size_t>((first + words + 8) / 4 * 4), 0.0f);
    for (int64_t i = 0; i < n; ++i) {
      const float random = size * (2.0f * philox_uniform(11, static_cast<uint64_t>(first + i), 0) - 1.0f);
      const float value = size > 0 ? random : std::numeric_limits<float>::quiet_NaN();
      if (dtype != DType::bf16) {
        host_[static_cast<size_t>(first + i)] = value;
        continue;
      }
      const auto upper = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
      std::memcpy(reinterpret_cast<char*>(&host_[static_cast<size_t>(first)]) + 2 * i, &upper, sizeof(upper));
    }
    args_.push_back({nullptr, dtype, shape, shape, Shape(shape.size(), 0)});
    first_.push_back(first);
    return static_cast<int>(args_.size()) - 1;
  }
  void set_classes(int tensor, int classes) {
    for (int64_t i = 0; i < args_[at(tensor)].size(); ++i) {
      const auto label = static_cast<int32_t>(i * 7919 % classes);
      std::memcpy(&host_[static_cast<size_t>(first_[at(tensor)] + i)], &label, sizeof(label));
    }
  }
  void upload() {
    if (device_ == nullptr) must(cudaMalloc(&device_, host_.size() * sizeof(float)));
    must(cudaMemcpy(device_, host_.data(), host_.size() * sizeof(float), cudaMemcpyHostToDevice));
  }
  std::vector<float> download() const {
    std::vector<float> all(host_.size());
    must(cudaMemcpy(all.data(), device_, all.size() * sizeof(float), cudaMemcpyDeviceToHost));
    return all;
  }
  const std::vector<float>& before() const { return host_; }
  /// The values of one tensor in a result of download() or before().
  std::vector<float> values(int tensor, const std::vector<float>& all) const {
    std::vector<float> of(static_cast<size_t>(size(tensor)));
    const float* const from = &all[static_cast<size_t>(first(tensor))];
    for (size_t i = 0; i < of.size(); ++i) {
      if (args_[at(tensor)].dtype != DType::bf16) {
        of[i] = from[i];
        continue;
      }
      uint16_t upper = 0;
      std::memcpy(&upper, reinterpret_cast<const char*>(from) + 2 * i, sizeof(upper));
      of[i] = std::bit_cast<float>(static_cast<uint32_t>(upper) << 16);
    }
    return of;
  }
  TensorArg arg(int tensor, bool accumulate = false) const {
    TensorArg a = args_[at(tensor)];
    a.data = static_cast<float*>(device_) + first_[at(tensor)];
    a.accumulate = accumulate;
    return a;
  }
  int64_t first(int tensor) const { return first_[at(tensor)]; }
  int64_t size(int tensor) const { return args_[at(tensor)].size(); }

 private:
  static size_t at(int tensor) { return static_cast<size_t>(tensor); }

  int64_t shift_;
  std::vector<float> host_;
  std::vector<TensorArg> args_;
  std::vector<int64_t> first_;
  void* device_ = nullptr;
};

/// The largest error. It is relative to the largest expected value or, if they are given, to the largest sum of the
/// terms' magnitudes, because terms may cancel.
struct Worst {
  double off = 0, size = 0;
  void compare(double got, double expected, double terms = 0) {
    off = std::isnan(got) ? INFINITY : std::max(off, std::fabs(got - expected));
    size = std::max({size, std::fabs(expected), terms});
  }
  double relative() const { return off / std::max(size, 1e-30); }
};

inline void run(const CudaKernel& kernel) {
  kernel(nullptr);
  must(cudaDeviceSynchronize());
}

}  // namespace trainctl
