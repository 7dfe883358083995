// A range with a name on this thread, which Nsight Systems shows above what was enqueued in it. Where no profiler
// is attached it costs a few nanoseconds.
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
