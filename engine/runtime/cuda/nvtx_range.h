// A named range on this thread, which Nsight Systems shows above the work enqueued in it. Costs a few nanoseconds
// when no profiler is attached.
#pragma once

#include <nvtx3/nvToolsExt.h>

namespace trainctl::cuda {

class NvtxRange {
 public:
  explicit NvtxRange(const char* name) { nvtxRangePushA(name); }
  ~NvtxRange() { nvtxRangePop(); }
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

}  // namespace trainctl::cuda
