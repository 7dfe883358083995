// Work enqueued on a stream as a graph, and its time on the device.
#pragma once

#include "engine/runtime/cuda/handles.h"

namespace trainctl::cuda {

/// A graph, uploaded, of what `enqueue` puts on the stream and on the streams that it joins to it. Passes on
/// exceptions of `enqueue`.
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

/// Time on the device of what `enqueue` puts on the stream, between the two events. Waits for it.
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
