// The exchange of tokens on GPUs; see token_exchange.h.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/data_check_cuda.cuh"
#include "engine/ops/cuda/vector_cuda.cuh"

namespace trainctl {
namespace {

constexpr int kPlaceThreads = 256, kPlaceWarps = kPlaceThreads / 32;

/// A block places the tokens of one rank, in their order.
__global__ void __launch_bounds__(kPlaceThreads)
    place_tokens_kernel(const int32_t* ids, int64_t tokens, int k, int experts_per_rank, int64_t most, int32_t* rows,
                        int32_t* places, int32_t* counts) {
  __shared__ int before[kPlaceWarps];
  wait_for_kernel_before();
  let_next_kernel_start();
  const int rank = static_cast<int>(blockIdx.x), warp = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32;
  const int first = rank * experts_per_rank;
  int next = 0;
  for (int64_t begin = 0; begin < tokens; begin += kPlaceThreads) {
    const int64_t t = begin + threadIdx.x;
    bool here = false;
    for (int j = 0; j < k && t < tokens; ++j)
      here |= ids[t * k + j] >= first && ids[t * k + j] < first + experts_per_rank;
    const unsigned votes = __ballot_sync(0xffffffffu, here);
    if (lane == 0) before[warp] = __popc(votes);
    __syncthreads();
    int row = next + __popc(votes & ((1u << lane) - 1));
    for (int w = 0; w < kPlaceWarps; ++w) {
      if (w < warp) row += before[w];
      next += before[w];
    }
    if (t < tokens) places[rank * tokens + t] = here && row < most ? row : -1;
    if (here && row < most) rows[rank * most + row] = static_cast<int32_t>(t);
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    counts[rank] = next;
    if (next > most)
      data_is_wrong(
          "moe: more tokens go to the experts of one rank than a block of the exchange has rows; increase the layer's "
          "capacity, or set parallel.expert_method: gather");
  }
  for (int64_t r = next + threadIdx.x; r < most; r += kPlaceThreads) rows[rank * most + r] = -1;
}

/// A block of threads copies one row of words.
template <class Word>
__global__ void __launch_bounds__(kPlaceThreads)
    pack_tokens_kernel(const Word* x, const int32_t* tokens, int64_t words, Word padding, Word* blocks) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t row = blockIdx.x, token = tokens[row];
  for (int64_t i = threadIdx.x; i < words; i += kPlaceThreads)
    blocks[row * words + i] = token < 0 ? padding : x[token * words + i];
}

/// A block of threads adds up the rows of one token.
__global__ void __launch_bounds__(kPlaceThreads)
    sum_tokens_kernel(Ref<Mixed> blocks, const int32_t* places, int ranks, int64_t rows, int64_t tokens, int64_t width,
                      Ref<Mixed> sums) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t token = blockIdx.x;
  for (int64_t i = threadIdx.x; i < width; i += kPlaceThreads) {
    float sum = 0;
    for (int r = 0; r < ranks; ++r) {
      const int64_t place = places[r * tokens + token];
      if (place >= 0) sum += value(blocks, (r * rows + place) * width + i);
    }
    set(sums, token * width + i, sum);
  }
}

// Launchers

unsigned exchange_grid(int64_t count) {
  check(count <= INT32_MAX, "moe: too many rows for one launch");
  return static_cast<unsigned>(count);
}

template <class Word>
CudaKernel launch_pack(const CudaKernelCall& call, int64_t bytes, Word padding) {
  const auto words = bytes / static_cast<int64_t>(sizeof(Word));
  const auto* const x = call.in[0].as<const Word>();
  const auto* const tokens = call.in[1].as<const int32_t>();
  auto* const blocks = call.out[0].as<Word>();
  const unsigned rows = exchange_grid(call.in[1].size());
  return [=](CudaStream stream) {
    launch(pack_tokens_kernel<Word>, rows, kPlaceThreads, 0, stream, "pack_tokens", x, tokens, words, padding, blocks);
  };
}

}  // namespace

CudaKernel prepare_place_tokens(const CudaKernelCall& call) {
  const auto k = static_cast<int>(call.in[0].shape.back()),
             experts_per_rank = static_cast<int>(call.attrs.integer("experts_per_rank"));
  const int64_t tokens = call.out[1].shape[1], most = call.attrs.integer("rows");
  const auto* const ids = call.in[0].as<const int32_t>();
  int32_t *const rows = call.out[0].as<int32_t>(), *const places = call.out[1].as<int32_t>(),
                 *const counts = call.out[2].as<int32_t>();
  const unsigned ranks = exchange_grid(call.attrs.integer("ranks"));
  return [=](CudaStream stream) {
    launch(place_tokens_kernel, ranks, kPlaceThreads, 0, stream, "place_tokens", ids, tokens, k, experts_per_rank, most,
           rows, places, counts);
  };
}

CudaKernel prepare_pack_tokens(const CudaKernelCall& call) {
  const int64_t bytes = call.in[0].shape.back() * byte_size(call.in[0].dtype);
  const auto begin_at = [&](int64_t word) {  // rows of both operands begin at whole words
    const auto address = [](const TensorArg& arg) {
      return static_cast<int64_t>(reinterpret_cast<uintptr_t>(arg.data));
    };
    return (bytes | address(call.in[0]) | address(call.out[0])) % word == 0;
  };
  if (call.in[0].dtype == DType::i32) return launch_pack<int32_t>(call, bytes, -1);
  if (begin_at(16)) return launch_pack<uint4>(call, bytes, uint4{});
  if (begin_at(4)) return launch_pack<uint32_t>(call, bytes, 0u);
  return launch_pack<uint16_t>(call, bytes, uint16_t{0});
}

CudaKernel prepare_sum_tokens(const CudaKernelCall& call) {
  const Shape& blocks = call.in[0].shape;
  const auto ranks = static_cast<int>(blocks[0]);
  const int64_t rows = blocks[1], width = blocks[2], tokens = call.in[1].shape[1];
  const auto* const places = call.in[1].as<const int32_t>();
  const Ref<Mixed> in = ref<Mixed>(call.in[0]), out = ref<Mixed>(call.out[0]);
  const unsigned grid_size = exchange_grid(tokens);
  return [=](CudaStream stream) {
    launch(sum_tokens_kernel, grid_size, kPlaceThreads, 0, stream, "sum_tokens", in, places, ranks, rows, tokens, width,
           out);
  };
}

}  // namespace trainctl
