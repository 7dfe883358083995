/* The kernels of snake for NVIDIA GPUs (snake_cuda.cu). */
#ifndef SNAKE_CUDA_H
#define SNAKE_CUDA_H

#include "trainctl_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif
int snake_forward_cuda(const trainctl_call* call, void* stream);
int snake_backward_cuda(const trainctl_call* call, void* stream);
#ifdef __cplusplus
}
#endif

#endif
