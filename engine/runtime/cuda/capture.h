// Captures work on a stream as a CUDA graph, and measures its time on the device.
#pragma once

#include "engine/runtime/cuda/handles.h"

namespace trainctl::cuda {

/// Captures what `enqueue` puts on the stream, and on other streams that it makes wait for this one, as a CUDA graph.
/// Returns the instantiated graph, uploaded to the device. Passes on exceptions of `enqueue`.
template <class Enqueue>
GraphExec capture_graph(cudaStream_t stream, const Enqueue& enqueue) {
  cudaGraph_t captured = nullptr;
  cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
  try {
    enqueue();
  } catch (...) {
    cudaStreamEndCapture(stream, &captured);
    throw;
  }
  cuda_check(cudaStreamEndCapture(stream, &captured), "cudaStreamEndCapture");
  const Graph graph(captured);
  cudaGraphExec_t executable = nullptr;
  cuda_check(cudaGraphInstantiate(&executable, captured, 0), "cudaGraphInstantiate");
  GraphExec owned(executable);
  cuda_check(cudaGraphUpload(executable, stream), "cudaGraphUpload");
  return owned;
}

/// Seconds that the device takes for what `enqueue` puts on the stream. Waits until it is done.
template <class Enqueue>
double seconds_of(cudaStream_t stream, const Event& begin, const Event& end, const Enqueue& enqueue) {
  cuda_check(cudaEventRecord(begin.get(), stream), "cudaEventRecord");
  enqueue();
  cuda_check(cudaEventRecord(end.get(), stream), "cudaEventRecord");
  cuda_check(cudaEventSynchronize(end.get()), "cudaEventSynchronize");
  float ms = 0;
  cuda_check(cudaEventElapsedTime(&ms, begin.get(), end.get()), "cudaEventElapsedTime");
  return static_cast<double>(ms) / 1e3;
}

}  // namespace trainctl::cuda
