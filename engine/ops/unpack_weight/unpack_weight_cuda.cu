// Unpacks a frozen 4- or 8-bit weight (graph/packing.h). A thread unpacks 8 elements.
#include "engine/graph/packing.h"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/vector_cuda.cuh"

namespace trainctl {
namespace {

constexpr int kUnpackThreads = 256;

/// The code book, as an argument: threads read different entries of it.
struct CodeBook {
  float value[16];
};

// Kernels

/// words [blocks, 1 + 64 / kTogether], y [blocks, 64]; kTogether codes per word: 8 of nf4, 4 of int8. A thread writes 8
/// elements, at once if y is aligned.
template <int kTogether, bool kAligned, class T>
__global__ void __launch_bounds__(kUnpackThreads)
    unpack_words_kernel(CodeBook book, const uint32_t* words, int64_t eights, Ref<T> y) {
  wait_for_kernel_before();
  let_next_kernel_start();
  __shared__ float codes[16];
  if (threadIdx.x < 16) codes[threadIdx.x] = book.value[threadIdx.x];
  __syncthreads();
  constexpr int kEightsOfBlock = static_cast<int>(kPackedBlock) / 8, kWords = 8 / kTogether, kBits = 32 / kTogether;
  for (int64_t i = int64_t{blockIdx.x} * kUnpackThreads + threadIdx.x; i < eights;
       i += int64_t{gridDim.x} * kUnpackThreads) {
    const uint32_t* const from = words + i / kEightsOfBlock * (1 + kEightsOfBlock * kWords);
    const float most = __uint_as_float(from[0]), step = most / 127;
    float v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t word = from[1 + i % kEightsOfBlock * kWords + j / kTogether] >> (j % kTogether * kBits);
      v[j] = kTogether == 8 ? codes[word & 15u] * most : static_cast<float>(static_cast<int8_t>(word & 255u)) * step;
    }
    if constexpr (kAligned) {
      store(y, i * 8, v);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) set(y, i * 8 + j, v[j]);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kUnpackThreads) widen_weight_kernel(const bf16* x, int64_t all, T* y) {
  wait_for_kernel_before();
  let_next_kernel_start();
  for (int64_t i = int64_t{blockIdx.x} * kUnpackThreads + threadIdx.x; i < all;
       i += int64_t{gridDim.x} * kUnpackThreads)
    y[i] = from_f32<T>(to_f32(x[i]));
}

// Launchers

unsigned unpack_blocks_of(int64_t threads) {
  constexpr int64_t kMost = 1 << 16;
  return static_cast<unsigned>(std::min(ceil_div(threads, kUnpackThreads), kMost));
}

template <int kTogether, class T>
CudaKernel prepare_unpacked_words(const CudaKernelCall& call) {
  CodeBook book;
  std::copy(kNf4Codes.begin(), kNf4Codes.end(), book.value);
  const int64_t eights = call.out[0].size() / 8;
  const auto kernel = packs_are_aligned({&call.out[0]}) ? unpack_words_kernel<kTogether, true, T>
                                                        : unpack_words_kernel<kTogether, false, T>;
  return
      [=, words = static_cast<const uint32_t*>(call.in[0].as<uint32_t>()), y = ref<T>(call.out[0])](CudaStream stream) {
        launch(kernel, unpack_blocks_of(eights), kUnpackThreads, 0, stream, "unpack_weight", book, words, eights, y);
      };
}

CudaKernel prepare_unpack_weight(const CudaKernelCall& call) {
  if (call.out[0].size() == 0) return [](CudaStream) {};
  const Packing packing = packing_of(call.attrs.text("packing"));
  return with_float_type(call.out[0].dtype, [&](auto t) -> CudaKernel {
    using T = decltype(t);
    if (packing == Packing::nf4) return prepare_unpacked_words<8, T>(call);
    if (packing == Packing::int8) return prepare_unpacked_words<4, T>(call);
    const int64_t all = call.out[0].size();
    return [=, x = static_cast<const bf16*>(call.in[0].as<bf16>()), y = call.out[0].as<T>()](CudaStream stream) {
      launch(widen_weight_kernel<T>, unpack_blocks_of(all), kUnpackThreads, 0, stream, "unpack_weight", x, all, y);
    };
  });
}

}  // namespace

extern const CudaKernels unpack_weight_cuda = {{"unpack_weight", prepare_unpack_weight}};

}  // namespace trainctl
