// The executor of a rank on an NVIDIA GPU. Includes no CUDA header; a build without CUDA links a stub.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/runtime/executor.h"

namespace trainctl {

struct CudaExecutorOptions {
  int device = 0;               ///< CUDA's index in this process
  int gpu = -1;                 ///< the host's index, for messages; -1: as `device`
  bool graph = true;            ///< capture the step and replay it; false, or CUDA_LAUNCH_BLOCKING=1: stream by stream
  double timeout_seconds = 60;  ///< without progress while ranks wait for each other
  std::function<void(const std::string& line)> notice;  ///< receives messages for the user; empty: stderr
};

/// Starts CUDA on the device in a background thread, since that takes a while. Ignores errors, which
/// make_cuda_executor will report.
void begin_cuda(int device);

/// Same as make_cpu_executor, with the arena in the device's memory. `ranks`, in host memory, is for agreements between
/// ranks; their devices communicate as in cuda_communicator.h. If a rank does not come or is gone, start_step and
/// finish_step throw CommError; if the device fails, EnvError. For one thread at a time. `program` and `ranks` must
/// outlive it.
std::unique_ptr<Executor> make_cuda_executor(const Program& program, Communicator& ranks,
                                             const ExecutorOptions& options, const CudaExecutorOptions& cuda);

}  // namespace trainctl
