// The kernels of the family on CPUs.
#include "engine/ops/kernel.h"

namespace trainctl {

CpuKernel prepare_route(const KernelCall& call);         // route_cpu.cpp
CpuKernel prepare_route_grad(const KernelCall& call);    // route_cpu.cpp
CpuKernel prepare_experts(const KernelCall& call);       // experts_cpu.cpp
CpuKernel prepare_experts_grad(const KernelCall& call);  // experts_cpu.cpp

extern const CpuKernels moe_cpu = {{"route", prepare_route},
                                   {"route_grad", prepare_route_grad},
                                   {"experts", prepare_experts},
                                   {"experts_grad", prepare_experts_grad}};

}  // namespace trainctl
