// quantise on a GPU (quantise.cpp, quantised.h): rounds x [height, width] to FP8 words and their scales, in the form by
// rows, in the form by columns, or both. A block reads a tile of 128 x 128 numbers once and writes its part of each
// form. A thread has 4 x 8 numbers of the tile in registers; 16 threads share 4 rows, and 32 threads share 8 columns:
//
//           0 .. 7   8 .. 15  ..        columns
//   0 .. 3    t0       t1     ..        t0 .. t15 are half of a warp
//   4 .. 7    t16      t17    ..
#include "engine/ops/cuda/activations_cuda.cuh"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/vector_cuda.cuh"
#include "engine/ops/quantise/quantised.h"
#include "engine/ops/quantise/tensor_scale.h"

namespace trainctl {
namespace {

/// Rows and columns of a tile; rows of a thread; columns of a thread.
constexpr int kQuantisedTile = 128, kQuantisedRows = 4, kQuantisedColumns = 8;
constexpr int kAcross = kQuantisedTile / kQuantisedColumns,
              kQuantisedDown = kQuantisedTile / kQuantisedRows;  ///< threads of a tile in each direction
constexpr int kQuantiseThreads = kAcross * kQuantisedDown, kQuantiseWarps = kQuantiseThreads / 32;
constexpr int kQuantiseBlocks = 2;  ///< on a multiprocessor: one loads while the other computes
static_assert(kQuantisedTile == kScaledTogether);

/// The numbers that share a scale: 128 numbers of a line, a tile of 128 x 128, or the whole tensor.
enum class ScaledAlike : uint8_t { line, square, tensor };

/// The input from which the scale of the whole tensor follows (ScaledAlike::tensor): the largest magnitude on each of
/// `count` ranks, or the delayed scale.
struct TensorScaleSource {
  const float* from = nullptr;
  int64_t count = 0;
  bool delayed = false, e5m2 = false;

  __device__ TensorScale get() const {
    if (delayed) return delayed_scale(*from);
    uint32_t amax = 0;
    for (int64_t r = 0; r < count; ++r) amax = max(amax, __float_as_uint(from[r]));
    return current_scale(__uint_as_float(amax), e5m2);
  }
};

/// The outputs of one form (quantised.h): its lines are the rows of x, or the columns of x.
struct Form {
  uint32_t* words = nullptr;  ///< [lines, padded / 4], four FP8 numbers each; null: the form is not needed
  float* scales = nullptr;
  int64_t lines = 0, padded = 0;
  int64_t columns = 0;  ///< ScaledAlike::square: columns of `scales`
};

/// Two numbers as E4M3 or E5M2, `low` in the lower byte.
__device__ inline uint32_t pair_of(float low, float high, bool e5m2) {
#if __CUDA_ARCH__ >= 890
  uint16_t pair;
  if (e5m2)
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  else
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
#else
  __trap();  // matmul_fp8 refuses such a GPU
  return 0;
#endif
}
__device__ inline uint32_t four_of(float a, float b, float c, float d, bool e5m2) {
  return pair_of(a, b, e5m2) | pair_of(c, d, e5m2) << 16;
}

/// The magnitude of a number, as bits that compare like it.
__device__ inline uint32_t size_of(float v) { return __float_as_uint(v) & 0x7fffffffu; }
/// The factor that numbers with this scale are multiplied by before they are rounded: 1 / scale, or 1 if one of the
/// numbers, and therefore the scale, is not finite.
__device__ inline float inverse_of(uint32_t scale) {
  return scale >= 0x7f800000u ? 1.0f : __uint_as_float(bits_of_inverse(scale));
}

/// The 4 x 8 numbers of a thread in the type of x, with 0 outside of the matrix. All are fetched before any is
/// converted.
template <class T>
struct alignas(16) Part {
  T v[kQuantisedRows][kQuantisedColumns];

  __device__ void fetch(const T* x, int64_t r, int64_t c, int64_t height, int64_t width, bool packs) {
    if (packs && r + kQuantisedRows <= height && c + kQuantisedColumns <= width) {
#pragma unroll
      for (int i = 0; i < kQuantisedRows; ++i) {
#pragma unroll
        for (int j = 0; j < kQuantisedColumns; j += kPack<T>) {
          const uint4 q = load_16(x + (r + i) * width + c + j);
          memcpy(&v[i][j], &q, sizeof q);
        }
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kQuantisedRows; ++i) {
#pragma unroll
      for (int j = 0; j < kQuantisedColumns; ++j)
        v[i][j] = r + i < height && c + j < width ? x[(r + i) * width + c + j] : from_f32<T>(0.0f);
    }
  }
};

/// The operation on x before it is rounded: none, an activation, or the product with the slope of an activation at the
/// input `at`. kAt: whether it reads `at`.
struct Same {
  static constexpr bool kAt = false;
};
template <class F>
struct Activated {
  static constexpr bool kAt = false;
  __device__ float operator()(float x, float) const { return F{}(x); }
};
template <class F>
struct Sloped {
  static constexpr bool kAt = true;
  __device__ float operator()(float x, float at) const { return F{}(x, at); }
};

/// Writes the scale of a tile. The last tile of a line also fills the padding of `scales` with 1.
__device__ inline void write_square_scale(const Form& form, int64_t line_tile, int64_t part, float scale) {
  float* const row = form.scales + line_tile * form.columns;
  row[part] = scale;
  if (part + 1 == form.padded / kQuantisedTile)
    for (int64_t i = part + 1; i < form.columns; ++i) row[i] = 1.0f;
}

/// Shared memory of a block, used in three phases: the largest magnitude and the sum of each column over the rows of
/// one warp; the largest magnitude of each column of the tile; the words of the tile in the form by columns.
struct Exchange {
  uint32_t largest[kQuantisedTile];
  union {
    struct {
      uint32_t largest[kQuantiseWarps][kQuantisedTile];
      float sums[kQuantiseWarps][kQuantisedTile];
    } of_warps;
    uint32_t turned[kQuantisedTile]
                   [kQuantisedDown];  ///< word w of line l is at w ^ l / 8 * 2: neither side has bank conflicts
  };
};

/// Eight adjacent numbers of a row of shared memory.
template <class N>
__device__ inline void put_eight(N* to, const N (&v)[kQuantisedColumns]) {
  uint4 q[2];
  memcpy(q, v, sizeof q);
  reinterpret_cast<uint4*>(to)[0] = q[0];
  reinterpret_cast<uint4*>(to)[1] = q[1];
}

/// Writes the largest magnitude, and with `sums` the sum, of each column over the 8 rows of the warp.
__device__ inline void gather_columns(const float (&v)[kQuantisedRows][kQuantisedColumns], bool sums,
                                      Exchange& shared) {
  const int across = static_cast<int>(threadIdx.x) % kAcross;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t largest[kQuantisedColumns];
  float sum[kQuantisedColumns];
#pragma unroll
  for (int j = 0; j < kQuantisedColumns; ++j) {
    largest[j] = 0;
#pragma unroll
    for (int i = 0; i < kQuantisedRows; ++i) largest[j] = max(largest[j], size_of(v[i][j]));
    largest[j] = max(largest[j], __shfl_xor_sync(~0u, largest[j], kAcross));
  }
  if (lane < kAcross) put_eight(&shared.of_warps.largest[warp][across * kQuantisedColumns], largest);
  if (!sums) return;
#pragma unroll
  for (int j = 0; j < kQuantisedColumns; ++j) {
    sum[j] = (v[0][j] + v[1][j]) + (v[2][j] + v[3][j]);
    sum[j] += __shfl_xor_sync(~0u, sum[j], kAcross);
  }
  if (lane < kAcross) put_eight(&shared.of_warps.sums[warp][across * kQuantisedColumns], sum);
}

/// Reduces the values of the warps to those of the tile: the first 128 threads the largest magnitude of one column
/// each, the next 128 its sum.
__device__ inline void reduce_columns(float* sums, int64_t c0, int64_t width, Exchange& shared) {
  const int column = static_cast<int>(threadIdx.x) % kQuantisedTile;
  if (threadIdx.x < kQuantisedTile) {
    uint32_t all = 0;
#pragma unroll
    for (int w = 0; w < kQuantiseWarps; ++w) all = max(all, shared.of_warps.largest[w][column]);
    shared.largest[column] = all;
  } else if (threadIdx.x < 2 * kQuantisedTile && sums != nullptr && c0 + column < width) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kQuantiseWarps; ++w) sum += shared.of_warps.sums[w][column];
    sums[c0 + column] = sum;
  }
}

/// Writes the words and scales of the thread's rows in the form by rows. `of_row`: the largest magnitude that
/// determines each row's scale; `by_tensor`: the factor of all numbers with ScaledAlike::tensor.
template <ScaledAlike kAlike>
__device__ inline void write_rows(const float (&v)[kQuantisedRows][kQuantisedColumns],
                                  const uint32_t (&of_row)[kQuantisedRows], float by_tensor, bool e5m2,
                                  const Form& rows, int64_t r, int64_t c, int64_t part) {
#pragma unroll
  for (int i = 0; i < kQuantisedRows; ++i) {
    if (r + i >= rows.lines) break;
    float by = by_tensor;
    if constexpr (kAlike != ScaledAlike::tensor) {
      const uint32_t scale = bits_of_scale(of_row[i]);
      if (kAlike == ScaledAlike::line && threadIdx.x % kAcross == 0)
        rows.scales[part * rows.lines + r + i] = __uint_as_float(scale);
      by = inverse_of(scale);
    }
    const uint2 words = {four_of(v[i][0] * by, v[i][1] * by, v[i][2] * by, v[i][3] * by, e5m2),
                         four_of(v[i][4] * by, v[i][5] * by, v[i][6] * by, v[i][7] * by, e5m2)};
    *reinterpret_cast<uint2*>(rows.words + ((r + i) * rows.padded + c) / 4) = words;
  }
}

/// The same for the form by columns; shared memory transposes the words.
template <ScaledAlike kAlike>
__device__ inline void write_columns(const float (&v)[kQuantisedRows][kQuantisedColumns],
                                     const uint32_t (&of_column)[kQuantisedColumns], float by_tensor, bool e5m2,
                                     const Form& columns, int64_t r0, int64_t c0, Exchange& shared) {
  const int across = static_cast<int>(threadIdx.x) % kAcross, down = static_cast<int>(threadIdx.x) / kAcross;
#pragma unroll
  for (int j = 0; j < kQuantisedColumns; ++j) {
    const int line = across * kQuantisedColumns + j;
    float by = by_tensor;
    if constexpr (kAlike != ScaledAlike::tensor) {
      const uint32_t scale = bits_of_scale(of_column[j]);
      if (kAlike == ScaledAlike::line && down == 0 && c0 + line < columns.lines)
        columns.scales[r0 / kQuantisedTile * columns.lines + c0 + line] = __uint_as_float(scale);
      by = inverse_of(scale);
    }
    shared.turned[line][down ^ across * 2] = four_of(v[0][j] * by, v[1][j] * by, v[2][j] * by, v[3][j] * by, e5m2);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kQuantisedTile / kQuantisedDown; ++i) {
    const int line = down + i * kQuantisedDown;
    const uint2 words = *reinterpret_cast<const uint2*>(&shared.turned[line][(across ^ line / kQuantisedColumns) * 2]);
    if (c0 + line < columns.lines)
      *reinterpret_cast<uint2*>(columns.words + ((c0 + line) * columns.padded + r0) / 4 + across * 2) = words;
  }
}

constexpr int kSumColumns = 32, kSumRows = 8;

/// db [n] (+)= the sum of sums [tiles, n] over the tiles.
template <class T>
__global__ void __launch_bounds__(kSumColumns* kSumRows)
    sum_tiles(const float* sums, int64_t tiles, int64_t n, Ref<T> db, bool accumulate) {
  __shared__ float part[kSumRows][kSumColumns];
  wait_for_kernel_before();
  let_next_kernel_start();
  const int across = static_cast<int>(threadIdx.x) % kSumColumns, down = static_cast<int>(threadIdx.x) / kSumColumns;
  const int64_t c = int64_t{blockIdx.x} * kSumColumns + across;
  float sum = 0;
  for (int64_t t = down; t < tiles && c < n; t += kSumRows) sum += sums[t * n + c];
  part[down][across] = sum;
  __syncthreads();
  if (down != 0 || c >= n) return;
  for (int i = 1; i < kSumRows; ++i) sum += part[i][across];
  set(db, c, accumulate ? value(db, c) + sum : sum);
}

/// The largest magnitude of the tile, from the largest of each thread's rows.
__device__ inline uint32_t largest_of_tile(const uint32_t (&of_row)[kQuantisedRows], Exchange& shared) {
  uint32_t all = max(max(of_row[0], of_row[1]), max(of_row[2], of_row[3]));
#pragma unroll
  for (int by = 16; by > 0; by /= 2) all = max(all, __shfl_xor_sync(~0u, all, by));
  if (threadIdx.x % 32 == 0) shared.largest[threadIdx.x / 32] = all;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kQuantiseWarps; ++w) all = max(all, shared.largest[w]);
  return all;
}

/// The first row and column of the block's tile (r0, c0) and of the thread's part of it (r, c); `across`: the thread's
/// number among those that share its rows.
struct TilePlace {
  int64_t r0, c0, r, c;
  int across;
};

/// A thread's part of a tile: its numbers after the operation F, and the largest magnitude of each row.
struct TileNumbers {
  float v[kQuantisedRows][kQuantisedColumns];
  uint32_t of_row[kQuantisedRows];
};

template <class T, class F>
__device__ __forceinline__ void load_tile(const T* x, const T* at, int64_t height, int64_t width, bool packs,
                                          const TilePlace& tile, TileNumbers& to) {
  Part<T> part, place;
  part.fetch(x, tile.r, tile.c, height, width, packs);
  if constexpr (!std::is_same_v<F, Same>) {
    if constexpr (F::kAt) place.fetch(at, tile.r, tile.c, height, width, packs);
  }
#pragma unroll
  for (int i = 0; i < kQuantisedRows; ++i) {
    to.of_row[i] = 0;
#pragma unroll
    for (int j = 0; j < kQuantisedColumns; ++j) {
      to.v[i][j] = to_f32(part.v[i][j]);
      if constexpr (!std::is_same_v<F, Same>) to.v[i][j] = F{}(to.v[i][j], F::kAt ? to_f32(place.v[i][j]) : 0.0f);
      to.of_row[i] = max(to.of_row[i], size_of(to.v[i][j]));
    }
  }
}

/// ScaledAlike::tensor: the scale is known before the tile is read. `sums`: [tiles of rows, width], or null.
__device__ __forceinline__ void quantise_as_tensor(TileNumbers& of, const TilePlace& tile, int64_t width,
                                                   const Form& rows, const Form& columns, float* sums,
                                                   const TensorScaleSource& source, Exchange& shared) {
  const TensorScale scale = source.get();
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
    if (rows.words != nullptr) *rows.scales = scale.inverse;
    if (columns.words != nullptr) *columns.scales = scale.inverse;
  }
  if (sums != nullptr) {
    gather_columns(of.v, true, shared);
    __syncthreads();
    reduce_columns(sums + blockIdx.x * width, tile.c0, width, shared);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kQuantisedRows; ++i)
#pragma unroll
    for (int j = 0; j < kQuantisedColumns; ++j) of.v[i][j] = not_infinite(of.v[i][j]);
  const uint32_t unused[kQuantisedColumns] = {};
  if (rows.words != nullptr)
    write_rows<ScaledAlike::tensor>(of.v, of.of_row, scale.scale, source.e5m2, rows, tile.r, tile.c, 0);
  if (columns.words != nullptr)
    write_columns<ScaledAlike::tensor>(of.v, unused, scale.scale, source.e5m2, columns, tile.r0, tile.c0, shared);
}

/// ScaledAlike::square: the tile has one scale, in both forms.
__device__ __forceinline__ void quantise_as_square(const TileNumbers& of, const TilePlace& tile, const Form& rows,
                                                   const Form& columns, Exchange& shared) {
  const uint32_t all = largest_of_tile(of.of_row, shared);
  if (threadIdx.x == 0) {
    const float scale = __uint_as_float(bits_of_scale(all));
    if (rows.words != nullptr) write_square_scale(rows, blockIdx.x, blockIdx.y, scale);
    if (columns.words != nullptr) write_square_scale(columns, blockIdx.y, blockIdx.x, scale);
  }
  const uint32_t of_rows[kQuantisedRows] = {all, all, all, all};
  const uint32_t of_columns[kQuantisedColumns] = {all, all, all, all, all, all, all, all};
  if (rows.words != nullptr) write_rows<ScaledAlike::square>(of.v, of_rows, 1.0f, false, rows, tile.r, tile.c, 0);
  if (columns.words != nullptr)
    write_columns<ScaledAlike::square>(of.v, of_columns, 1.0f, false, columns, tile.r0, tile.c0, shared);
}

/// ScaledAlike::line: each row of the tile has a scale in the form by rows, and each column one in the form by columns.
template <ScaledAlike kAlike>
__device__ __forceinline__ void quantise_by_line(TileNumbers& of, const TilePlace& tile, int64_t width,
                                                 const Form& rows, const Form& columns, float* sums, Exchange& shared) {
  const bool by_columns = columns.words != nullptr || sums != nullptr;
  if (by_columns) {
    gather_columns(of.v, sums != nullptr, shared);
    __syncthreads();
    reduce_columns(sums == nullptr ? nullptr : sums + blockIdx.x * width, tile.c0, width, shared);
  }
  if (rows.words != nullptr) {
#pragma unroll
    for (int i = 0; i < kQuantisedRows; ++i)
      for (int by = kAcross / 2; by > 0; by /= 2)
        of.of_row[i] = max(of.of_row[i], __shfl_xor_sync(~0u, of.of_row[i], by));
    write_rows<kAlike>(of.v, of.of_row, 1.0f, false, rows, tile.r, tile.c, blockIdx.y);
  }
  if (columns.words == nullptr) return;
  __syncthreads();
  uint32_t of_column[kQuantisedColumns];
#pragma unroll
  for (int j = 0; j < kQuantisedColumns; ++j) of_column[j] = shared.largest[tile.across * kQuantisedColumns + j];
  write_columns<kAlike>(of.v, of_column, 1.0f, false, columns, tile.r0, tile.c0, shared);
}

/// Rounds x [height, width], row-major without padding, after the operation F. `at`: the input of Sloped. `packs`: rows
/// of x and `at` begin at multiples of 16 bytes. `sums`: [tiles of rows, width], the sums of each tile's columns, or
/// null. Blocks: (tiles of rows, tiles of columns).
template <class T, ScaledAlike kAlike, class F>
__global__ void __launch_bounds__(kQuantiseThreads, kQuantiseBlocks)
    quantise_tiles(const T* x, const T* at, int64_t height, int64_t width, bool packs, Form rows, Form columns,
                   float* sums, TensorScaleSource source) {
  __shared__ alignas(16) Exchange shared;
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t r0 = int64_t{blockIdx.x} * kQuantisedTile, c0 = int64_t{blockIdx.y} * kQuantisedTile;
  const int across = static_cast<int>(threadIdx.x) % kAcross, down = static_cast<int>(threadIdx.x) / kAcross;
  const TilePlace tile{r0, c0, r0 + down * kQuantisedRows, c0 + across * kQuantisedColumns, across};
  TileNumbers numbers;
  load_tile<T, F>(x, at, height, width, packs, tile, numbers);
  if constexpr (kAlike == ScaledAlike::tensor)
    quantise_as_tensor(numbers, tile, width, rows, columns, sums, source, shared);
  else if constexpr (kAlike == ScaledAlike::square)
    quantise_as_square(numbers, tile, rows, columns, shared);
  else
    quantise_by_line<kAlike>(numbers, tile, width, rows, columns, sums, shared);
}

Form form_of(const CudaKernelCall& call, size_t first, int64_t lines, int64_t length) {
  const TensorArg &words = call.out[first], &scales = call.out[first + 1];
  return {words.as<uint32_t>(), scales.as<float>(), lines, padded_line(length),
          scales.shape.size() > 1 ? scales.shape[1] : 0};
}

/// The gradient of a bias from the sums of tiles; nothing without one.
CudaKernel sum_of_tiles(const CudaKernelCall& call, int64_t tiles, int64_t n) {
  if (!epilogue_of(call.attrs).bias_grad) return nullptr;
  const TensorArg& db = call.out.back();
  return with_float_type(db.dtype, [&](auto t) -> CudaKernel {
    using T = decltype(t);
    return [=, db = ref<T>(db), accumulate = db.accumulate, scratch = call.scratch](CudaStream stream) {
      launch(sum_tiles<T>, static_cast<unsigned>(ceil_div(n, kSumColumns)), kSumColumns * kSumRows, 0, stream,
             "quantise", static_cast<const float*>(scratch->memory()), tiles, n, db, accumulate);
    };
  });
}

/// Launches quantise_tiles, and sum_tiles if the bias has a gradient.
template <class T, ScaledAlike kAlike, class F>
CudaKernel launch_tiles(const CudaKernelCall& call) {
  const TensorArg& x = call.in[0];
  const int64_t width = x.shape.back(), height = x.size() / width;
  Form rows, columns;
  if (call.attrs.flag("rows")) rows = form_of(call, 0, height, width);
  if (call.attrs.flag("columns")) columns = form_of(call, call.attrs.flag("rows") ? 2 : 0, width, height);
  const dim3 grid(static_cast<unsigned>(ceil_div(height, kQuantisedTile)),
                  static_cast<unsigned>(ceil_div(width, kQuantisedTile)));
  check(grid.y < 65536, "quantise supports rows of up to 8 million numbers");
  const bool packs = width * byte_size(x.dtype) % 16 == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  const TensorArg& at = call.in[F::kAt ? 1 : 0];
  check(reinterpret_cast<uintptr_t>(at.data) % 16 == 0 || !packs, "quantise: both inputs are aligned alike");
  TensorScaleSource source;
  if constexpr (kAlike == ScaledAlike::tensor)
    source = {call.in[1].as<float>(), call.in[1].size(), call.attrs.flag("delayed"), call.attrs.flag("e5m2")};
  const CudaKernel sum = sum_of_tiles(call, grid.x, width);
  if (sum) call.scratch->need(int64_t{grid.x} * width * byte_size(DType::f32));
  return [=, x = x.as<T>(), at = at.as<T>(), scratch = call.scratch](CudaStream stream) {
    float* const sums = sum ? static_cast<float*>(scratch->memory()) : nullptr;
    launch(quantise_tiles<T, kAlike, F>, grid, kQuantiseThreads, 0, stream, "quantise", x, at, height, width, packs,
           rows, columns, sums, source);
    if (sum) sum(stream);
  };
}

/// Selects how numbers share scales, and the operation before the rounding.
template <class T>
CudaKernel launch_steps(const CudaKernelCall& call) {
  const Epilogue epilogue = epilogue_of(call.attrs);
  if (call.attrs.flag("tensor")) return launch_tiles<T, ScaledAlike::tensor, Same>(call);
  if (call.attrs.flag("squares")) return launch_tiles<T, ScaledAlike::square, Same>(call);
  switch (epilogue.slope) {
    case Activation::relu:
      return launch_tiles<T, ScaledAlike::line, Sloped<ReluGrad>>(call);
    case Activation::gelu:
      return launch_tiles<T, ScaledAlike::line, Sloped<GeluGrad>>(call);
    case Activation::gelu_tanh:
      return launch_tiles<T, ScaledAlike::line, Sloped<GeluTanhGrad>>(call);
    case Activation::none:
      break;
  }
  switch (epilogue.activation) {
    case Activation::relu:
      return launch_tiles<T, ScaledAlike::line, Activated<Relu>>(call);
    case Activation::gelu:
      return launch_tiles<T, ScaledAlike::line, Activated<Gelu>>(call);
    case Activation::gelu_tanh:
      return launch_tiles<T, ScaledAlike::line, Activated<GeluTanh>>(call);
    case Activation::none:
      break;
  }
  return launch_tiles<T, ScaledAlike::line, Same>(call);
}

CudaKernel prepare_quantise(const CudaKernelCall& call) {
  return with_float_type(call.in[0].dtype, [&](auto t) { return launch_steps<decltype(t)>(call); });
}

}  // namespace

extern const CudaKernels quantise_cuda = {{"quantise", prepare_quantise}};

}  // namespace trainctl
