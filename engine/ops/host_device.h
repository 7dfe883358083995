// Marks of functions that kernels call, empty outside of CUDA sources.
#pragma once

#if defined(__CUDACC__)
#define TRAINCTL_HOST_DEVICE __host__ __device__
#define TRAINCTL_DEVICE __device__
#else
#define TRAINCTL_HOST_DEVICE
#define TRAINCTL_DEVICE
#endif
