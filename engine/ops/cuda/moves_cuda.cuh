// Rows of bytes from one place to another: what moves, reshapes and transposes that keep rows whole share.
#pragma once

#include "engine/ops/cuda/strided_cuda.cuh"

namespace trainctl {

/// Copies rows of `bytes`; `outer` runs over them and has the steps of source and destination in bytes.
CudaKernel prepare_copy_rows(const void* from, void* to, int64_t bytes, const cpu::Loops<2>& outer, const char* name);

}  // namespace trainctl
