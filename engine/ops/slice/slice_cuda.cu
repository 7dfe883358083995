// Copies the rows of the input's window into the output, and fills what is around it.
#include <cstring>

#include "engine/graph/bf16.h"
#include "engine/graph/f16.h"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/moves_cuda.cuh"
#include "engine/ops/slice/window.h"

namespace trainctl {
namespace {

/// Rows of the output in words of 2 to 16 bytes.
struct WindowRows {
  int outer = 0;  ///< dims that iterate over rows
  Divisor size[cpu::kMaxDims];
  uint32_t begin[cpu::kMaxDims] = {}, count[cpu::kMaxDims] = {};  ///< position and size of the window in the output
  int64_t stride[cpu::kMaxDims] = {};                             ///< in the input
  int64_t base = 0;                                               ///< index of the window's first word in the input
  Divisor row;
  uint32_t first = 0, inside = 0;  ///< words of a row that the window has
  int64_t words = 0;               ///< words of all rows
};

// Kernels

constexpr int kWindowUnroll = 4;

/// to = the window `w` of `from`; words of `to` outside of `from` become `fill`.
template <class Word>
__global__ void __launch_bounds__(kMapThreads) window_kernel(WindowRows w, const Word* from, Word* to, Word fill) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t base = static_cast<int64_t>(blockIdx.x) * (kWindowUnroll * kMapThreads);
  const int64_t base_row = base / w.row.by;
  const auto base_word = static_cast<uint32_t>(base - base_row * w.row.by);
  Word word[kWindowUnroll];
#pragma unroll
  for (int u = 0; u < kWindowUnroll; ++u) {
    const uint32_t local = threadIdx.x + u * kMapThreads;
    word[u] = fill;
    if (base + local >= w.words) continue;
    const uint32_t row = w.row.quotient(base_word + local), column = base_word + local - row * w.row.by - w.first;
    bool inside = column < w.inside;  // a column before the window wraps around
    int64_t at = w.base + column;
    uint32_t index = static_cast<uint32_t>(base_row) + row;
    for (int d = w.outer - 1; d >= 0; --d) {
      const uint32_t outer = d == 0 ? 0 : w.size[d].quotient(index), place = index - outer * w.size[d].by - w.begin[d];
      inside = inside && place < w.count[d];
      at += place * w.stride[d];
      index = outer;
    }
    if (inside) word[u] = from[at];
  }
#pragma unroll
  for (int u = 0; u < kWindowUnroll; ++u) {
    const uint32_t local = threadIdx.x + u * kMapThreads;
    if (base + local < w.words) to[base + local] = word[u];
  }
}

// Launchers

template <class Word>
Word filled(float value, DType dtype) {
  Word word;
  const uint16_t half = dtype == DType::f16 ? to_f16(value) : to_bf16(value);
  const auto element = static_cast<size_t>(byte_size(dtype));
  for (size_t at = 0; at < sizeof word; at += element)
    std::memcpy(reinterpret_cast<char*>(&word) + at, is_half(dtype) ? static_cast<const void*>(&half) : &value,
                element);
  return word;
}

/// `elements`: elements per word. All sizes and places of the innermost dim are multiples of it.
template <class Word>
CudaKernel launch_window(const SliceWindow& window, int64_t elements, const TensorArg& in, const TensorArg& out,
                         const char* name) {
  WindowRows w;
  const WindowDim& row = window.dims.back();
  w.outer = static_cast<int>(window.dims.size()) - 1;
  w.row = Divisor(row.out / elements);
  w.first = static_cast<uint32_t>(row.out_begin / elements);
  w.inside = static_cast<uint32_t>(row.count / elements);
  w.base = row.in_begin / elements;
  w.words = out.size() / elements;
  check(out.size() / row.out < (int64_t{1} << 31), "CUDA kernels take up to 2^31 rows");
  int64_t stride = row.in / elements;
  for (int d = w.outer - 1; d >= 0; --d) {
    const WindowDim& dim = window.dims[static_cast<size_t>(d)];
    w.size[d] = Divisor(dim.out);
    w.begin[d] = static_cast<uint32_t>(dim.out_begin);
    w.count[d] = static_cast<uint32_t>(dim.count);
    w.stride[d] = stride;
    w.base += dim.in_begin * stride;
    stride *= dim.in;
  }
  const auto blocks = static_cast<unsigned>(ceil_div(w.words, kWindowUnroll * kMapThreads));
  return [=, from = static_cast<const Word*>(in.data), to = static_cast<Word*>(out.data),
          fill = filled<Word>(window.fill, out.dtype)](CudaStream stream) {
    launch(window_kernel<Word>, blocks, kMapThreads, 0, stream, name, w, from, to, fill);
  };
}

CudaKernel copy_window(const CudaKernelCall& call, const SliceWindow& window, const char* name) {
  const TensorArg &in = call.in[0], &out = call.out[0];
  check(in.dtype == out.dtype, "slice and pad move elements as they are");
  check(window.dims.size() <= cpu::kMaxDims, "CUDA kernels take tensors of up to 8 dims that cannot be merged");
  if (out.size() == 0) return [](CudaStream) {};
  const WindowDim& row = window.dims.back();
  const int64_t element = byte_size(out.dtype);
  const int64_t common =
      (row.in | row.out | row.in_begin | row.out_begin | row.count) * element |
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(in.data) | reinterpret_cast<uintptr_t>(out.data));
  if (common % 16 == 0) return launch_window<uint4>(window, 16 / element, in, out, name);
  if (common % 8 == 0) return launch_window<uint2>(window, 8 / element, in, out, name);
  if (common % 4 == 0) return launch_window<uint32_t>(window, 4 / element, in, out, name);
  return launch_window<uint16_t>(window, 2 / element, in, out, name);
}

CudaKernel prepare_slice(const CudaKernelCall& call) { return copy_window(call, window_of_slice(call), "slice"); }
CudaKernel prepare_pad(const CudaKernelCall& call) { return copy_window(call, window_of_pad(call), "pad"); }

}  // namespace

extern const CudaKernels slice_cuda = {{"slice", prepare_slice, kTakesF16}, {"pad", prepare_pad, kTakesF16}};

}  // namespace trainctl
