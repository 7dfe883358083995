// The executor of a rank on an NVIDIA GPU. Knows no CUDA header; a build without CUDA links a stub.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/runtime/executor.h"

namespace trainctl {

struct CudaExecutorOptions {
  int device = 0;               ///< as CUDA counts those of this process
  int gpu = -1;                 ///< the host's number of it, for messages; -1: as `device`
  bool graph = true;            ///< capture the step and replay it; false, or CUDA_LAUNCH_BLOCKING=1: stream by stream
  double timeout_seconds = 60;  ///< without progress where ranks wait for each other
  std::function<void(const std::string& line)> notice;  ///< what the user should know; stderr where empty
};

/// Begins to start CUDA on the device, which takes a while, on a thread of its own; says nothing of errors, which
/// make_cuda_executor will meet again.
void begin_cuda(int device);

/// As make_cpu_executor, with the arena in the device's memory. The ranks meet over `ranks`, which lies in host
/// memory; their devices communicate as cuda_communicator.h says. Where a rank does not come, or is gone, start_step
/// and finish_step throw CommError; where the device fails, EnvError. For one thread at a time. `program` and `ranks`
/// must outlive it.
std::unique_ptr<Executor> make_cuda_executor(const Program& program, Communicator& ranks,
                                             const ExecutorOptions& options, const CudaExecutorOptions& cuda);

}  // namespace trainctl
