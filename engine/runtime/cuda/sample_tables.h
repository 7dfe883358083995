// Data set tensors that the device keeps whole: a step then transfers only the numbers of its samples.
#pragma once

#include <vector>

#include "engine/compile/program.h"
#include "engine/runtime/cuda/handles.h"
#include "engine/runtime/input_layout.h"
#include "engine/runtime/workspace.h"

namespace trainctl::cuda {

class SampleTables {
 public:
  /// Keeps those of `tables` whose loads take whole samples, within a quarter of the device memory that is free after
  /// arena and workspace are allocated.
  SampleTables(const Program& program, const std::vector<SampleTable>& tables, const Workspace& workspace);

  const std::vector<SampleTable>& kept() const { return kept_; }
  /// The tensor in device memory; null if it is not kept.
  const std::byte* of(const std::string& tensor) const;
  int64_t sample_bytes(const std::string& tensor) const;

 private:
  std::vector<SampleTable> kept_;
  std::vector<DeviceMemory> memory_;  ///< parallel to kept_
};

}  // namespace trainctl::cuda
