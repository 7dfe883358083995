// y[i_perm[0], i_perm[1], ..] = x[i_0, i_1, ..]: dim d of y is dim perm[d] of x. Tiles go through shared memory, so
// that x and y are both accessed along their rows.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/moves_cuda.cuh"
#include "engine/ops/cuda/vector_cuda.cuh"

namespace trainctl {
namespace {

/// A batch of matrices: to[r * to_row + c] = from[c * from_row + r].
struct Matrices {
  Nest<2> outer;  ///< offset of each in from and to
  int64_t rows = 0, columns = 0, from_row = 0, to_row = 0;
  Divisor row_tiles, column_tiles;
};

// Kernels

/// Reads and writes words of W elements; a tile is 32 x 32 words.
template <class E, int W>
__global__ void __launch_bounds__(256) transpose_tiles(Matrices m, const E* x, E* y) {
  constexpr int kSide = 32 * W;
  struct alignas(sizeof(E) * W) Word {
    E e[W];
  };
  __shared__ E tile[kSide][kSide + 1];
  wait_for_kernel_before();
  let_next_kernel_start();
  const uint32_t of_rows = m.column_tiles.quotient(blockIdx.x), matrix = m.row_tiles.quotient(of_rows);
  const int64_t r0 = static_cast<int64_t>(of_rows - matrix * m.row_tiles.by) * kSide;
  const int64_t c0 = static_cast<int64_t>(blockIdx.x - of_rows * m.column_tiles.by) * kSide;
  int64_t at[2] = {};
  m.outer.add_offsets(matrix, at);
  const int lane = static_cast<int>(threadIdx.x % 32) * W, first = threadIdx.x / 32;
  Word word[kSide / 8];
#pragma unroll
  for (int i = 0; i < kSide / 8; ++i) {
    const int c = first + 8 * i;
    if (c0 + c < m.columns && r0 + lane < m.rows) {
      word[i] = *reinterpret_cast<const Word*>(x + at[0] + (c0 + c) * m.from_row + r0 + lane);
    }
  }
#pragma unroll
  for (int i = 0; i < kSide / 8; ++i) {
    for (int w = 0; w < W; ++w) tile[first + 8 * i][lane + w] = word[i].e[w];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSide / 8; ++i) {
    const int r = first + 8 * i;
    if (r0 + r >= m.rows || c0 + lane >= m.columns) continue;
    Word out;
    for (int w = 0; w < W; ++w) out.e[w] = tile[lane + w][r];
    *reinterpret_cast<Word*>(y + at[1] + (r0 + r) * m.to_row + c0 + lane) = out;
  }
}

constexpr int kPackColumns = 64;  ///< columns of a tile of packs

/// Reads and writes packs of 8 2-byte elements. A tile is kRows rows of y by kPackColumns columns. Two columns' packs
/// become 8 pairs, each in one row of y:
///
///   column c      a0 a1 a2 ..        row r      a0 b0
///   column c + 1  b0 b1 b2 ..        row r + 1  a1 b1   ..
///
/// Pack q of a tile's row is stored at place q ^ (row / 8 % 8), so that neither side has bank conflicts.
template <int kRows>
__global__ void __launch_bounds__(256) transpose_packs(Matrices m, const uint16_t* x, uint16_t* y) {
  constexpr int kPack = 8, kPacks = kPackColumns / kPack;
  constexpr int kParts = kRows / 64, kTasks = kParts;  // 8 lanes read 64 elements of a column; pairs of a thread
  static_assert(kPacks == 8 && kRows * kPackColumns == 256 * 2 * kPack * kTasks);
  __shared__ uint4 tile[kRows][kPacks];
  wait_for_kernel_before();
  let_next_kernel_start();
  const uint32_t of_rows = m.column_tiles.quotient(blockIdx.x), matrix = m.row_tiles.quotient(of_rows);
  const int64_t r0 = static_cast<int64_t>(of_rows - matrix * m.row_tiles.by) * kRows;
  const int64_t c0 = static_cast<int64_t>(blockIdx.x - of_rows * m.column_tiles.by) * kPackColumns;
  int64_t at[2] = {};
  m.outer.add_offsets(matrix, at);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int down = warp % kParts * 8 + lane % 8;
  const auto pair_of = [&](int task) { return (warp / kParts + task * (8 / kParts)) * 4 + lane / 8; };
  const int64_t r = r0 + down * kPack;
  uint4 of_column[kTasks][2];
#pragma unroll
  for (int t = 0; t < kTasks; ++t) {
    const int64_t c = c0 + 2 * pair_of(t);
    if (r >= m.rows || c >= m.columns) continue;
    const uint16_t* const from = x + at[0] + c * m.from_row + r;
    of_column[t][0] = load_16(from);
    of_column[t][1] = load_16(from + m.from_row);
  }
#pragma unroll
  for (int t = 0; t < kTasks; ++t) {
    const int pair = pair_of(t);
    const uint4 &a = of_column[t][0], &b = of_column[t][1];
    const uint32_t words[4][2] = {{a.x, b.x}, {a.y, b.y}, {a.z, b.z}, {a.w, b.w}};
    auto* const to = reinterpret_cast<uint32_t*>(&tile[down * kPack][pair / 4 ^ down % 8]) + pair % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[(2 * i) * (kPackColumns / 2)] = __byte_perm(words[i][0], words[i][1], 0x5410);
      to[(2 * i + 1) * (kPackColumns / 2)] = __byte_perm(words[i][0], words[i][1], 0x7632);
    }
  }
  __syncthreads();
  const int along = lane % 8;
  if (c0 + along * kPack >= m.columns) return;
#pragma unroll
  for (int i = 0; i < kRows / 32; ++i) {
    const int row = static_cast<int>(threadIdx.x) / kPacks + i * 32;
    if (r0 + row < m.rows)
      store_16(y + at[1] + (r0 + row) * m.to_row + c0 + along * kPack, tile[row][along ^ row / kPack % 8]);
  }
}

/// For matrices too narrow for tiles: in y's order; reads of x rely on the caches.
template <class E>
__global__ void __launch_bounds__(256) transpose_elements(Nest<1> from, const E* x, E* y) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i >= from.count) return;
  int64_t at[1] = {};
  from.add_offsets(static_cast<uint32_t>(i), at);
  y[i] = x[at[0]];
}

// Launchers

template <class E>
CudaKernel launch_tiles(void (*kernel)(Matrices, const E*, E*), int tile_rows, int tile_columns, Matrices m,
                        const TensorArg& in, const TensorArg& out) {
  m.row_tiles = Divisor(ceil_div(m.rows, tile_rows));
  m.column_tiles = Divisor(ceil_div(m.columns, tile_columns));
  const int64_t blocks = m.outer.count * m.row_tiles.by * m.column_tiles.by;
  check(blocks < (int64_t{1} << 31), "transpose takes up to 2^31 tiles");
  return [=, x = in.as<E>(), y = out.as<E>()](CudaStream stream) {
    launch(kernel, static_cast<unsigned>(blocks), 256, 0, stream, "transpose", m, x, y);
  };
}
template <class E, int W>
CudaKernel launch_tiles(const Matrices& m, const TensorArg& in, const TensorArg& out) {
  return launch_tiles<E>(transpose_tiles<E, W>, 32 * W, 32 * W, m, in, out);
}

template <class E>
CudaKernel launch_elements(const cpu::Loops<2>& loops, const TensorArg& in, const TensorArg& out) {
  cpu::Loops<1> of_in;
  for (int d = 0; d < loops.ndim; ++d) of_in.add(loops.size[d], {loops.stride[d][0]});
  const Nest<1> from(of_in);
  return [=, x = in.as<E>(), y = out.as<E>()](CudaStream stream) {
    launch(transpose_elements<E>, static_cast<unsigned>(ceil_div(from.count, 256)), 256, 0, stream, "transpose", from,
           x, y);
  };
}

/// True if `elements` elements (2, or a pack) can be accessed at once: all sizes and offsets are multiples of it.
bool words_fit(int elements, const Matrices& m, const cpu::Loops<2>& outer, const TensorArg& in, const TensorArg& out) {
  int64_t bits = m.rows | m.columns | m.from_row | m.to_row;
  for (int d = 0; d < outer.ndim; ++d) bits |= outer.stride[d][0] | outer.stride[d][1];
  const uintptr_t places = reinterpret_cast<uintptr_t>(in.data) | reinterpret_cast<uintptr_t>(out.data);
  return bits % elements == 0 && places % static_cast<uintptr_t>(elements * byte_size(in.dtype)) == 0;
}

template <class E>
CudaKernel launch_matrices(const Matrices& m, const cpu::Loops<2>& outer, const TensorArg& in, const TensorArg& out) {
  // If a side is shorter than a tile of packs or of pairs, most of the tile's threads would be idle.
  if constexpr (sizeof(E) == 2) {
    if (std::min(m.rows, m.columns) >= 64 && words_fit(8, m, outer, in, out)) {
      return m.rows % 128 == 0 ? launch_tiles<E>(transpose_packs<128>, 128, kPackColumns, m, in, out)
                               : launch_tiles<E>(transpose_packs<64>, 64, kPackColumns, m, in, out);
    }
  }
  // Words of 4 bytes have too few bytes in flight.
  const bool pairs = words_fit(2, m, outer, in, out) && (sizeof(E) == 2 || std::min(m.rows, m.columns) >= 64);
  return pairs ? launch_tiles<E, 2>(m, in, out) : launch_tiles<E, 1>(m, in, out);
}

/// Merges adjacent dims; copies whole rows if the innermost dim stays, otherwise transposes matrices of the two dims
/// that are contiguous in the input and the output.
CudaKernel prepare_transpose(const CudaKernelCall& call) {
  const TensorArg &in = call.in[0], &out = call.out[0];
  check(in.dtype == out.dtype, "transpose moves elements as they are");
  if (out.size() == 0) return [](CudaStream) {};
  const Ints perm = call.attrs.ints("perm");
  const Shape in_strides = cpu::strides_of(in.shape), out_strides = cpu::strides_of(out.shape);
  cpu::Loops<2> merged;  // in the output's order
  for (size_t d = 0; d < perm.size(); ++d) {
    const auto from = static_cast<size_t>(perm[d]);
    merged.add(in.shape[from], {in_strides[from], out_strides[d]});
  }
  const cpu::Loops<2> all = merged;
  std::array<int64_t, 2> inner{};
  const int64_t columns = merged.take_inner(inner), bytes = byte_size(in.dtype);
  if (inner[0] == 1 || columns == 1) {  // copies whole rows
    for (auto& strides : merged.stride) strides = {strides[0] * bytes, strides[1] * bytes};
    return prepare_copy_rows(in.data, out.data, columns * bytes, merged, "transpose");
  }
  // One other loop reads contiguously: with the innermost loop it forms the matrices.
  Matrices m;
  m.columns = columns;
  m.from_row = inner[0];
  cpu::Loops<2> outer;
  for (int d = 0; d < merged.ndim; ++d) {
    if (merged.stride[d][0] == 1 && m.rows == 0) {
      m.rows = merged.size[d];
      m.to_row = merged.stride[d][1];
    } else {
      outer.add(merged.size[d], merged.stride[d]);
    }
  }
  m.outer = Nest<2>(outer);
  const bool narrow = std::min(m.rows, m.columns) < 8 && out.size() < (int64_t{1} << 31);
  const auto run = [&](auto e) {
    using E = decltype(e);
    return narrow ? launch_elements<E>(all, in, out) : launch_matrices<E>(m, outer, in, out);
  };
  return bytes == 4 ? run(uint32_t{}) : run(uint16_t{});
}

}  // namespace

extern const CudaKernels transpose_cuda = {{"transpose", prepare_transpose, kTakesF16}};

}  // namespace trainctl
