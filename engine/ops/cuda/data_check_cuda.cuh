// The reaction to data that is out of range, such as an unknown id: CPU kernels throw, a GPU kernel traps.
#pragma once

#include <cstddef>

extern "C" __device__ void __assertfail(const char* message, const char* file, unsigned line, const char* function,
                                        size_t char_size) noexcept __attribute__((__noreturn__));

namespace trainctl {

/// Ends the kernel: the driver prints the message, and every later CUDA call fails with cudaErrorAssert. Also in builds
/// without assertions, because the error is in the user's data.
__device__ inline void data_is_wrong(const char* message) { __assertfail(message, "the data", 0, "", sizeof(char)); }

}  // namespace trainctl
