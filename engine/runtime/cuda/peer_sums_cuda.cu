// Sums of operands in one GPU's memory. Memory-bound: each thread has a pack of every summand in flight.
#include <algorithm>

#include "engine/ops/cuda/vector_cuda.cuh"
#include "engine/runtime/cuda/peer_sums.h"

namespace trainctl::cuda {
namespace {

constexpr int kPeerThreads = 256;

/// kSummands 0: the number is taken from the argument.
template <class T, int kSummands, int V>
__global__ void __launch_bounds__(kPeerThreads) sum_peers(const __grid_constant__ PeerSum sum) {
  const int64_t pack = static_cast<int64_t>(blockIdx.x) * kPeerThreads + threadIdx.x, at = pack * V;
  if (at + V > sum.count) return;
  const int summands = kSummands == 0 ? sum.summands : kSummands;
  const auto summand = [&](int i) {
    return Ref<T>{const_cast<T*>(static_cast<const T*>(sum.in[static_cast<size_t>(i)]))};
  };
  float total[V];
  load(summand(0), at, total);
  if constexpr (kSummands > 0) {
    float v[kSummands][V];
#pragma unroll
    for (int i = 1; i < kSummands; ++i) load(summand(i), at, v[i]);
#pragma unroll
    for (int i = 1; i < kSummands; ++i) {
#pragma unroll
      for (int j = 0; j < V; ++j) total[j] += v[i][j];
    }
  } else {
    for (int i = 1; i < summands; ++i) {
      float v[V];
      load(summand(i), at, v);
#pragma unroll
      for (int j = 0; j < V; ++j) total[j] += v[j];
    }
  }
  store(Ref<T>{static_cast<T*>(sum.out)}, at, total);
}

template <class T, int kSummands, int V>
void run(const PeerSum& sum, CudaStream stream) {
  const auto blocks = static_cast<unsigned>(std::max<int64_t>(ceil_div(sum.count / V, kPeerThreads), 1));
  sum_peers<T, kSummands, V><<<blocks, kPeerThreads, 0, stream>>>(sum);
  cuda_check_launch("sum_peers");
}

template <class T, int V>
void run_packs(const PeerSum& sum, CudaStream stream) {
  if (sum.summands == 2) return run<T, 2, V>(sum, stream);
  if (sum.summands == 4) return run<T, 4, V>(sum, stream);
  if (sum.summands == 8) return run<T, 8, V>(sum, stream);
  run<T, 0, V>(sum, stream);
}

template <class T>
void run_type(const PeerSum& sum, CudaStream stream) {
  constexpr int V = kPack<T>;
  const auto is_aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  const bool packs = sum.count % V == 0 && is_aligned(sum.out) &&
                     std::all_of(sum.in.begin(), sum.in.begin() + sum.summands, is_aligned);
  packs ? run_packs<T, V>(sum, stream) : run<T, 0, 1>(sum, stream);
}

}  // namespace

void enqueue_sum(const PeerSum& sum, CudaStream stream) {
  check(sum.summands >= 1 && sum.summands <= kMostSummands, "the number of summands is out of range");
  with_float_type(sum.dtype, [&](auto t) { run_type<decltype(t)>(sum, stream); });
}

}  // namespace trainctl::cuda
