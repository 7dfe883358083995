// The kernels of the family on CPUs.
#include "engine/ops/kernel.h"

namespace trainctl {

CpuKernel prepare_route(const KernelCall& call);          // route_cpu.cpp
CpuKernel prepare_route_grad(const KernelCall& call);     // route_cpu.cpp
CpuKernel prepare_experts(const KernelCall& call);        // experts_cpu.cpp
CpuKernel prepare_experts_grad(const KernelCall& call);   // experts_cpu.cpp
CpuKernel prepare_expert_load(const KernelCall& call);    // balance_cpu.cpp
CpuKernel prepare_sequence_load(const KernelCall& call);  // balance_cpu.cpp
CpuKernel prepare_count_load(const KernelCall& call);     // balance_cpu.cpp
CpuKernel prepare_balance_bias(const KernelCall& call);   // balance_cpu.cpp
CpuKernel prepare_balance(const KernelCall& call);        // balance_cpu.cpp
CpuKernel prepare_balance_grad(const KernelCall& call);   // balance_cpu.cpp
CpuKernel prepare_drop_pairs(const KernelCall& call);     // balance_cpu.cpp
CpuKernel prepare_place_tokens(const KernelCall& call);   // token_exchange_cpu.cpp
CpuKernel prepare_pack_tokens(const KernelCall& call);    // token_exchange_cpu.cpp
CpuKernel prepare_sum_tokens(const KernelCall& call);     // token_exchange_cpu.cpp

extern const CpuKernels moe_cpu = {{"route", prepare_route},
                                   {"route_grad", prepare_route_grad},
                                   {"experts", prepare_experts},
                                   {"experts_grad", prepare_experts_grad},
                                   {"expert_load", prepare_expert_load},
                                   {"sequence_load", prepare_sequence_load},
                                   {"count_load", prepare_count_load},
                                   {"balance_bias", prepare_balance_bias},
                                   {"balance_losses", prepare_balance},
                                   {"balance_losses_grad", prepare_balance_grad},
                                   {"drop_pairs", prepare_drop_pairs},
                                   {"place_tokens", prepare_place_tokens},
                                   {"pack_tokens", prepare_pack_tokens},
                                   {"sum_tokens", prepare_sum_tokens}};

}  // namespace trainctl
