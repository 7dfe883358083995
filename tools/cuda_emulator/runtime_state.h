// What the stand-in for CUDA's runtime knows, for its parts.
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

/// A kernel as the host knows it.
struct Function {
  Module* module = nullptr;
  std::string name;
  size_t most_dynamic_shared = 48 * 1024;
  bool large_clusters = false;
};

/// What is done in order on a stream.
using Work = std::function<void()>;

struct Runtime {
  std::recursive_mutex mutex;
  std::vector<std::unique_ptr<Module>> modules;
  std::map<const void*, Function> functions;  ///< by the address of the host's stand-in
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
  std::thread::id capturing;                ///< who puts work into `captured`
  std::vector<Work> captured;
};

Runtime& runtime();
/// What a call that can fail returns: faults come first.
cudaError_t outcome(cudaError_t own = cudaSuccess);
/// All work so far is over.
void settle();
/// At once, or whenever the graph is launched that is captured now.
void submit(Work work);

}  // namespace trainctl::emulator
