// What a kernel does where the data names something that does not exist: the CPU kernels throw, a GPU stops.
#pragma once

#include <cstddef>

extern "C" __device__ void __assertfail(const char* message, const char* file, unsigned line, const char* function,
                                        size_t char_size) noexcept __attribute__((__noreturn__));

namespace trainctl {

/// Ends the kernel: the driver prints the message, and every later CUDA call fails with cudaErrorAssert. In builds
/// without assertions too, for it is the user's data that is wrong.
__device__ inline void data_is_wrong(const char* message) { __assertfail(message, "the data", 0, "", sizeof(char)); }

}  // namespace trainctl
