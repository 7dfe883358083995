// Functions of CUDA's driver, which the program does not link: it starts where there is no driver.
#pragma once

#include <cuda_runtime.h>

namespace trainctl {

/// `Function` as cuda.h declares it; null: the driver has none of that name.
template <class Function>
Function* driver_function(const char* name) {
  constexpr unsigned kVersion = 12000;  // of CUDA, whose form of the function is meant
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &entry, kVersion, cudaEnableDefault, &found);
  if (status != cudaSuccess) cudaGetLastError();
  return reinterpret_cast<Function*>(status == cudaSuccess && found == cudaDriverEntryPointSuccess ? entry : nullptr);
}

}  // namespace trainctl
