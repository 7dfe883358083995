// State of the stand-in for the CUDA runtime, shared by its parts.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tools/cuda_emulator/module.h"

namespace trainctl::emulator {

/// A kernel as host code sees it.
struct Function {
  Module* module = nullptr;
  std::string name;
  size_t most_dynamic_shared = 48 * 1024;
  bool large_clusters = false;
};

/// Work of a stream, done in order.
using Work = std::function<void()>;

struct Runtime {
  std::recursive_mutex mutex;
  std::vector<std::unique_ptr<Module>> modules;
  std::map<const void*, Function> functions;  ///< by the address of the host stub
  std::map<const void*, std::pair<Module*, std::string>> variables;
  struct Configuration {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
  };
  std::vector<Configuration> configurations;
  cudaError_t last = cudaSuccess;
  std::string message;
  uint64_t launches = 0;
  std::map<cudaStream_t, uint64_t> before;  ///< by stream, the launch that may still run
  std::thread::id capturing;                ///< the thread that records work into `captured`
  std::vector<Work> captured;
};

Runtime& runtime();
/// The return value of a call that can fail: a fault takes precedence over `own`.
cudaError_t outcome(cudaError_t own = cudaSuccess);
/// Waits until all submitted work is done.
void settle();
/// Runs the work now, or whenever the graph under capture is launched.
void submit(Work work);

}  // namespace trainctl::emulator
