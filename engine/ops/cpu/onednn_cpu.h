// Runs a oneDNN primitive on operands in a format that may differ from the one it computes in. All is prepared when a
// kernel is prepared: primitives, reorders, and the memory that they need.
#pragma once

#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "engine/ops/kernel.h"

namespace trainctl::cpu {

const dnnl::engine& engine();
/// The scratchpad of a primitive is memory that we provide.
dnnl::primitive_attr own_scratchpad();

/// The reorders of operands around one primitive. read() and write() for each operand, then finish().
class Steps {
 public:
  explicit Steps(int threads);

  /// `data`, in the format `plain`, is read in the format `wanted`.
  void read(int arg, const void* data, const dnnl::memory::desc& plain, const dnnl::memory::desc& wanted);
  /// The same for a result, which is added to `data` if it accumulates.
  void write(int arg, void* data, const dnnl::memory::desc& plain, const dnnl::memory::desc& wanted,
             bool accumulate = false);
  void finish(const dnnl::primitive& primitive, const dnnl::memory::desc& scratchpad);

  CpuKernel kernel() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace trainctl::cpu
