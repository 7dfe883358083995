// Memory that a CPU kernel uses only while it runs.
#pragma once

#include <cstdint>
#include <memory>

namespace trainctl::cpu {

/// Grows while kernels are prepared, so its address may change; each run looks it up.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void reserve(int64_t floats);
  float* data() const { return data_; }  ///< 64-byte aligned

 private:
  float* data_ = nullptr;
  int64_t size_ = 0;
};

/// Shared by all kernels that this thread prepares, which must run one at a time; lives as long as any of them.
std::shared_ptr<Scratch> scratch_of_this_thread();

}  // namespace trainctl::cpu
