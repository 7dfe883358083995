// Data set tensors that the device keeps whole: a step then brings the numbers of its samples, and no data.
#pragma once

#include <vector>

#include "engine/compile/program.h"
#include "engine/runtime/cuda/handles.h"
#include "engine/runtime/input_layout.h"
#include "engine/runtime/workspace.h"

namespace trainctl::cuda {

class SampleTables {
 public:
  /// Of `tables` those whose loads take whole samples, as long as they take no more than a quarter of what arena and
  /// workspace leave of the current device's free memory.
  SampleTables(const Program& program, const std::vector<SampleTable>& tables, const Workspace& workspace);

  const std::vector<SampleTable>& kept() const { return kept_; }
  /// Of the tensor, in the device's memory; null where it is not kept.
  const std::byte* of(const std::string& tensor) const;
  int64_t sample_bytes(const std::string& tensor) const;

 private:
  std::vector<SampleTable> kept_;
  std::vector<DeviceMemory> memory_;  ///< of kept_
};

}  // namespace trainctl::cuda
