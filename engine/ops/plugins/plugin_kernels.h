// The kernels of plugins on each device.
#pragma once

#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/kernel.h"

namespace trainctl {

/// Null if no loaded plugin has a kernel of that name, or none for the device.
const CpuKernelDef* find_plugin_cpu_kernel(std::string_view name);
const CudaKernelDef* find_plugin_cuda_kernel(std::string_view name);

}  // namespace trainctl
