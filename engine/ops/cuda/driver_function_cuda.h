// Functions of the CUDA driver, looked up at run time: the program does not link it and so starts without a driver.
#pragma once

#include <cuda_runtime.h>

namespace trainctl {

/// `Function`: the type that cuda.h declares. Null: the driver has no function of that name.
template <class Function>
Function* driver_function(const char* name) {
  constexpr unsigned kVersion = 12000;  // the CUDA version that defines its signature
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &entry, kVersion, cudaEnableDefault, &found);
  if (status != cudaSuccess) cudaGetLastError();
  return reinterpret_cast<Function*>(status == cudaSuccess && found == cudaDriverEntryPointSuccess ? entry : nullptr);
}

}  // namespace trainctl
