// Memory that a CPU kernel uses only while it runs.
#include "engine/ops/cpu/scratch_cpu.h"

#include <cstdlib>

#include "engine/base/error.h"

namespace trainctl::cpu {

Scratch::~Scratch() { std::free(data_); }

void Scratch::reserve(int64_t floats) {
  if (floats <= size_) return;
  std::free(data_);
  data_ = static_cast<float*>(std::aligned_alloc(64, static_cast<size_t>((floats + 15) / 16 * 64)));
  check(data_ != nullptr, "out of memory for the scratch of CPU kernels");
  size_ = floats;
}

std::shared_ptr<Scratch> scratch_of_this_thread() {
  static thread_local std::weak_ptr<Scratch> shared;
  std::shared_ptr<Scratch> scratch = shared.lock();
  if (scratch == nullptr) shared = scratch = std::make_shared<Scratch>();
  return scratch;
}

}  // namespace trainctl::cpu
