// Launches a kernel that writes out of bounds.
#include <cuda_runtime.h>

#include "tests/gpu/fault/faulty_kernel.h"

namespace trainctl {
namespace {

__global__ void write_to(int* nowhere) { *nowhere = 1; }

}  // namespace

void run_faulty_kernel() { write_to<<<1, 1>>>(reinterpret_cast<int*>(64)); }

}  // namespace trainctl
