// Copies of rows of bytes: shared by moves, by reshapes and by transposes that keep rows whole.
#pragma once

#include "engine/ops/cuda/strided_cuda.cuh"

namespace trainctl {

/// Copies rows of `bytes`; `outer` iterates over them, with the strides of source and destination in bytes.
CudaKernel prepare_copy_rows(const void* from, void* to, int64_t bytes, const cpu::Loops<2>& outer, const char* name);

}  // namespace trainctl
