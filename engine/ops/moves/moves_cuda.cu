// Moves that the compiler inserts, on the device: parts of tensors, sums of gradients, and zeros.
#include "engine/ops/cuda/activations_cuda.cuh"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/moves_cuda.cuh"

namespace trainctl {
namespace {

// Kernels

/// Rows of words of 2 to 16 bytes.
struct RowsOfWords {
  Nest<2> outer;  ///< strides in words
  Divisor row_words;
  int64_t words = 0;  ///< words of all rows
};

constexpr int kCopyUnroll = 4;

/// Copies rows of words between strided places; all loads of a thread come before its stores.
template <class Word>
__global__ void __launch_bounds__(kMapThreads) copy_moved_rows_kernel(RowsOfWords rows, const Word* from, Word* to) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t base = static_cast<int64_t>(blockIdx.x) * (kCopyUnroll * kMapThreads);
  const int64_t base_row = base / rows.row_words.by;
  const auto base_word = static_cast<uint32_t>(base - base_row * rows.row_words.by);
  Word word[kCopyUnroll];
  int64_t place[kCopyUnroll];
#pragma unroll
  for (int u = 0; u < kCopyUnroll; ++u) {
    const uint32_t local = threadIdx.x + u * kMapThreads;
    if (base + local >= rows.words) continue;
    const uint32_t row = rows.row_words.quotient(base_word + local);
    const int64_t column = base_word + local - row * rows.row_words.by;
    int64_t at[2] = {column, column};
    rows.outer.add_offsets(static_cast<uint32_t>(base_row) + row, at);
    word[u] = from[at[0]];
    place[u] = at[1];
  }
#pragma unroll
  for (int u = 0; u < kCopyUnroll; ++u) {
    if (base + threadIdx.x + u * kMapThreads < rows.words) to[place[u]] = word[u];
  }
}

struct SameElement {
  __device__ float operator()(std::array<float, 0>, std::array<float, 1> x) const { return x[0]; }
};

// Launchers

template <class Word>
CudaKernel launch_copy_rows(const void* from, void* to, int64_t bytes, const cpu::Loops<2>& outer, const char* name) {
  constexpr int64_t kBytes = sizeof(Word);
  cpu::Loops<2> in_words = outer;
  for (auto& strides : in_words.stride) strides = {strides[0] / kBytes, strides[1] / kBytes};
  RowsOfWords rows;
  rows.outer = Nest<2>(in_words);
  rows.row_words = Divisor(bytes / kBytes);
  rows.words = rows.outer.count * (bytes / kBytes);
  const auto blocks = static_cast<unsigned>(ceil_div(rows.words, kCopyUnroll * kMapThreads));
  return [=](CudaStream stream) {
    launch(copy_moved_rows_kernel<Word>, blocks, kMapThreads, 0, stream, name, rows, static_cast<const Word*>(from),
           static_cast<Word*>(to));
  };
}

/// A tensor as [outer, parts, inner]; inner in bytes.
struct MovedParts {
  int64_t outer, parts, bytes;

  explicit MovedParts(const CudaKernelCall& call)
      : outer(call.attrs.integer("outer")),
        parts(call.attrs.integer("parts")),
        bytes(call.attrs.integer("inner") * byte_size(call.in[0].dtype)) {
    check(outer * parts * call.attrs.integer("inner") == call.in[0].size(), "outer * parts * inner is not the input");
  }
};

}  // namespace

CudaKernel prepare_copy_rows(const void* from, void* to, int64_t bytes, const cpu::Loops<2>& outer, const char* name) {
  if (bytes == 0) return [](CudaStream) {};
  int64_t common = bytes | static_cast<int64_t>(reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to));
  for (int d = 0; d < outer.ndim; ++d) {
    if (outer.size[d] == 0) return [](CudaStream) {};
    common |= outer.stride[d][0] | outer.stride[d][1];
  }
  if (common % 16 == 0) return launch_copy_rows<uint4>(from, to, bytes, outer, name);
  if (common % 8 == 0) return launch_copy_rows<uint2>(from, to, bytes, outer, name);
  if (common % 4 == 0) return launch_copy_rows<uint32_t>(from, to, bytes, outer, name);
  return launch_copy_rows<uint16_t>(from, to, bytes, outer, name);
}

namespace {

CudaKernel prepare_copy_slice(const CudaKernelCall& call) {
  const TensorArg &in = call.in[0], &out = call.out[0];
  const MovedParts p(call);
  const int64_t index = call.attrs.integer("index");
  if (in.dtype != out.dtype) {  // converts too
    const int64_t inner = p.bytes / byte_size(in.dtype);
    TensorArg part = in;
    part.data = in.as<std::byte>() + index * p.bytes;
    return map_strided<0, 1>({}, {&part}, out, {p.outer, inner}, {Shape{p.parts * inner, 1}}, SameElement{},
                             "copy_slice");
  }
  cpu::Loops<2> rows;
  rows.add(p.outer, {p.parts * p.bytes, p.bytes});
  return prepare_copy_rows(in.as<std::byte>() + index * p.bytes, out.data, p.bytes, rows, "copy_slice");
}

CudaKernel prepare_pack(const CudaKernelCall& call) {
  const MovedParts p(call);
  check(call.in[0].dtype == call.out[0].dtype, "pack moves bytes");
  cpu::Loops<2> rows;
  rows.add(p.parts, {p.bytes, p.outer * p.bytes});
  rows.add(p.outer, {p.parts * p.bytes, p.bytes});
  return prepare_copy_rows(call.in[0].data, call.out[0].data, p.bytes, rows, "pack");
}

CudaKernel prepare_unpack(const CudaKernelCall& call) {
  const MovedParts p(call);
  check(call.in[0].dtype == call.out[0].dtype, "unpack moves bytes");
  cpu::Loops<2> rows;
  rows.add(p.parts, {p.outer * p.bytes, p.bytes});
  rows.add(p.outer, {p.bytes, p.parts * p.bytes});
  return prepare_copy_rows(call.in[0].data, call.out[0].data, p.bytes, rows, "unpack");
}

CudaKernel prepare_accumulate(const CudaKernelCall& call) {
  const TensorArg &in = call.in[0], &out = call.out[0];
  return map_mixed_binary(in, out, out, Sum{}, "accumulate");
}

CudaKernel prepare_zero(const CudaKernelCall& call) {
  void* out = call.out[0].data;
  const auto bytes = static_cast<size_t>(call.out[0].size() * byte_size(call.out[0].dtype));
  return [=](CudaStream stream) {
    if (bytes > 0) cuda_check(cudaMemsetAsync(out, 0, bytes, stream), "zero");
  };
}

}  // namespace

extern const CudaKernels moves_cuda = {{"copy_slice", prepare_copy_slice, kTakesF16},
                                       {"pack", prepare_pack, kTakesF16},
                                       {"unpack", prepare_unpack, kTakesF16},
                                       {"accumulate", prepare_accumulate, kTakesF16},
                                       {"zero", prepare_zero, kTakesF16}};

}  // namespace trainctl
