// A block rounds a tile of 128 x 128 numbers, each read once, for the lines of rows and for those of columns. A thread
// has 8 x 8 of them, in registers: 16 threads have 8 rows, 16 have 8 columns.
//
//           0 .. 7   8 .. 15  ..        columns
//   0 .. 7    t0       t1     ..        t0 .. t15 are half of a warp
//   8 .. 15   t16      t17    ..
#include "engine/ops/cuda/activations_cuda.cuh"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/vector_cuda.cuh"
#include "engine/ops/quantise/quantised.h"

namespace trainctl {
namespace {

constexpr int kTile = 128, kSide = 8, kAcross = kTile / kSide;  ///< threads of a tile in each direction
constexpr int kThreads = kAcross * kAcross, kWarps = kThreads / 32;
static_assert(kTile == kScaledTogether);

/// Where the lines of one form go; words null: it is not wanted.
struct Form {
  uint2* words = nullptr;
  float* scales = nullptr;
  int64_t lines = 0, padded = 0;
  int64_t columns = 0;  ///< of the scales of squares
};

/// Two numbers as E4M3, `low` in the lower byte.
__device__ inline uint32_t pair_of(float low, float high) {
#if __CUDA_ARCH__ >= 890
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
#else
  __trap();  // matmul_fp8 refuses such a GPU
  return 0;
#endif
}
__device__ inline uint2 eight_of(const float (&v)[kSide]) {
  return {pair_of(v[0], v[1]) | pair_of(v[2], v[3]) << 16, pair_of(v[4], v[5]) | pair_of(v[6], v[7]) << 16};
}

__device__ inline uint32_t size_of(float v) { return __float_as_uint(v) & 0x7fffffffu; }
/// What the numbers are multiplied by; 1 where one of them is not finite, and so is their scale.
__device__ inline float inverse_of(uint32_t scale) {
  return scale >= 0x7f800000u ? 1.0f : __uint_as_float(bits_of_inverse(scale));
}

template <class T>
__device__ inline void load_row(const T* row, int64_t columns, bool packs, float (&v)[kSide]) {
  if (packs && columns >= kSide) {
    if constexpr (std::is_same_v<T, float>) {
      four(load_16(row), v);
      four(load_16(row + 4), v + 4);
    } else {
      eight(load_16(row), v);
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kSide; ++j) v[j] = j < columns ? to_f32(row[j]) : 0.0f;
}

/// What becomes of the numbers before they are rounded: nothing, an activation, or the slope of one at `at`.
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

/// The scales of a square, and the 1s behind those of the last part of a line.
__device__ inline void write_square_scale(const Form& form, int64_t line_tile, int64_t part, float scale) {
  float* const row = form.scales + line_tile * form.columns;
  row[part] = scale;
  if (part + 1 == form.padded / kTile)
    for (int64_t i = part + 1; i < form.columns; ++i) row[i] = 1.0f;
}

/// Writes the sums over the tile's rows. `shared` has room for a number of each column and warp.
__device__ inline void sum_columns(const float (&v)[kSide][kSide], float* sums, int64_t c, int64_t width,
                                   float* shared) {
  const int across = static_cast<int>(threadIdx.x) % kAcross;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < kSide; ++j) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kSide; ++i) sum += v[i][j];
    sum += __shfl_xor_sync(~0u, sum, kAcross);
    if (lane < kAcross) shared[warp * kTile + across * kSide + j] = sum;
  }
  __syncthreads();
  if (threadIdx.x < kAcross) {
#pragma unroll
    for (int j = 0; j < kSide; ++j) {
      float sum = 0;
      for (int w = 0; w < kWarps; ++w) sum += shared[w * kTile + across * kSide + j];
      if (c + j < width) sums[c + j] = sum;
    }
  }
  __syncthreads();
}

constexpr int kSumColumns = 32, kSumRows = 8;

/// db[n] (+)= the sums of [tiles, n].
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

/// x: [columns.padded >= rows.lines][rows.padded >= columns.lines], row-major without padding. `packs`: rows of x begin
/// at multiples of 16 bytes.
/// `at`: where the slope is taken. `sums`: [tiles of rows, width], the sums of each tile's columns, or null.
template <class T, bool kSquares, class F>
__global__ void __launch_bounds__(kThreads) quantise_tiles(const T* x, const T* at, int64_t height, int64_t width,
                                                           bool packs, Form rows, Form columns, float* sums) {
  __shared__ uint32_t largest[kWarps][kTile];
  __shared__ uint2 turned[kTile][kAcross];
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t r0 = int64_t{blockIdx.x} * kTile, c0 = int64_t{blockIdx.y} * kTile;
  const int across = static_cast<int>(threadIdx.x) % kAcross, down = static_cast<int>(threadIdx.x) / kAcross;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t r = r0 + down * kSide, c = c0 + across * kSide;

  float v[kSide][kSide];
#pragma unroll
  for (int i = 0; i < kSide; ++i) load_row(x + (r + i) * width + c, r + i < height ? width - c : 0, packs, v[i]);

  if constexpr (!std::is_same_v<F, Same>) {
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
      float place[kSide] = {};
      if constexpr (F::kAt) load_row(at + (r + i) * width + c, r + i < height ? width - c : 0, packs, place);
#pragma unroll
      for (int j = 0; j < kSide; ++j) v[i][j] = F{}(v[i][j], place[j]);
    }
  }
  if (sums != nullptr) sum_columns(v, sums + blockIdx.x * width, c, width, reinterpret_cast<float*>(turned));

  uint32_t of_row[kSide], of_column[kSide] = {};
#pragma unroll
  for (int i = 0; i < kSide; ++i) {
    of_row[i] = 0;
#pragma unroll
    for (int j = 0; j < kSide; ++j) {
      of_row[i] = max(of_row[i], size_of(v[i][j]));
      of_column[j] = max(of_column[j], size_of(v[i][j]));
    }
  }
  if constexpr (kSquares) {
    uint32_t all = 0;
#pragma unroll
    for (int i = 0; i < kSide; ++i) all = max(all, of_row[i]);
    for (int by = 16; by > 0; by /= 2) all = max(all, __shfl_xor_sync(~0u, all, by));
    if (lane == 0) largest[warp][0] = all;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) all = max(all, largest[w][0]);
#pragma unroll
    for (int i = 0; i < kSide; ++i) of_row[i] = of_column[i] = all;
    if (threadIdx.x == 0) {
      const float scale = __uint_as_float(bits_of_scale(all));
      if (rows.words != nullptr) write_square_scale(rows, blockIdx.x, blockIdx.y, scale);
      if (columns.words != nullptr) write_square_scale(columns, blockIdx.y, blockIdx.x, scale);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kSide; ++i)
      for (int by = kAcross / 2; by > 0; by /= 2) of_row[i] = max(of_row[i], __shfl_xor_sync(~0u, of_row[i], by));
    if (columns.words != nullptr) {
#pragma unroll
      for (int j = 0; j < kSide; ++j) {
        of_column[j] = max(of_column[j], __shfl_xor_sync(~0u, of_column[j], kAcross));
        if (lane < kAcross) largest[warp][across * kSide + j] = of_column[j];
      }
      __syncthreads();
#pragma unroll
      for (int j = 0; j < kSide; ++j)
        for (int w = 0; w < kWarps; ++w) of_column[j] = max(of_column[j], largest[w][across * kSide + j]);
    }
  }

  if (rows.words != nullptr) {
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
      if (r + i >= rows.lines) break;
      const uint32_t scale = bits_of_scale(of_row[i]);
      if (!kSquares && across == 0) rows.scales[blockIdx.y * rows.lines + r + i] = __uint_as_float(scale);
      const float inverse = inverse_of(scale);
      float line[kSide];
#pragma unroll
      for (int j = 0; j < kSide; ++j) line[j] = v[i][j] * inverse;
      rows.words[((r + i) * rows.padded + c) / kSide] = eight_of(line);
    }
  }
  if (columns.words == nullptr) return;
    // Eight lines pass through shared memory, where word w of line l is at w ^ l / 8: neither side has bank conflicts.
#pragma unroll
  for (int j = 0; j < kSide; ++j) {
    const uint32_t scale = bits_of_scale(of_column[j]);
    if (!kSquares && down == 0 && c + j < columns.lines)
      columns.scales[blockIdx.x * columns.lines + c + j] = __uint_as_float(scale);
    const float inverse = inverse_of(scale);
    float line[kSide];
#pragma unroll
    for (int i = 0; i < kSide; ++i) line[i] = v[i][j] * inverse;
    turned[across * kSide + j][down ^ across] = eight_of(line);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSide; ++i) {
    const int line = down + i * kAcross;
    if (c0 + line < columns.lines)
      columns.words[((c0 + line) * columns.padded + r0) / kSide + across] = turned[line][across ^ line / kSide];
  }
}

Form form_of(const CudaKernelCall& call, size_t first, int64_t lines, int64_t length) {
  const TensorArg &words = call.out[first], &scales = call.out[first + 1];
  return {words.as<uint2>(), scales.as<float>(), lines, padded_line(length), scales.shape[1]};
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

template <class T, bool kSquares, class F>
CudaKernel launch_tiles(const CudaKernelCall& call) {
  const TensorArg& x = call.in[0];
  const int64_t width = x.shape.back(), height = x.size() / width;
  Form rows, columns;
  if (call.attrs.flag("rows")) rows = form_of(call, 0, height, width);
  if (call.attrs.flag("columns")) columns = form_of(call, call.attrs.flag("rows") ? 2 : 0, width, height);
  const dim3 grid(static_cast<unsigned>(ceil_div(height, kTile)), static_cast<unsigned>(ceil_div(width, kTile)));
  check(grid.y < 65536, "quantise takes rows of up to 8 million numbers");
  const bool packs = width * byte_size(x.dtype) % 16 == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  const TensorArg& at = call.in[F::kAt ? 1 : 0];
  check(reinterpret_cast<uintptr_t>(at.data) % 16 == 0 || !packs, "quantise: both inputs are aligned alike");
  const CudaKernel sum = sum_of_tiles(call, grid.x, width);
  if (sum) call.scratch->need(int64_t{grid.x} * width * byte_size(DType::f32));
  return [=, x = x.as<T>(), at = at.as<T>(), scratch = call.scratch](CudaStream stream) {
    float* const sums = sum ? static_cast<float*>(scratch->memory()) : nullptr;
    launch(quantise_tiles<T, kSquares, F>, grid, kThreads, 0, stream, "quantise", x, at, height, width, packs, rows,
           columns, sums);
    if (sum) sum(stream);
  };
}

template <class T>
CudaKernel launch_steps(const CudaKernelCall& call) {
  const Epilogue epilogue = epilogue_of(call.attrs);
  if (call.attrs.flag("squares")) return launch_tiles<T, true, Same>(call);
  switch (epilogue.slope) {
    case Activation::relu:
      return launch_tiles<T, false, Sloped<ReluGrad>>(call);
    case Activation::gelu:
      return launch_tiles<T, false, Sloped<GeluGrad>>(call);
    case Activation::gelu_tanh:
      return launch_tiles<T, false, Sloped<GeluTanhGrad>>(call);
    case Activation::none:
      break;
  }
  switch (epilogue.activation) {
    case Activation::relu:
      return launch_tiles<T, false, Activated<Relu>>(call);
    case Activation::gelu:
      return launch_tiles<T, false, Activated<Gelu>>(call);
    case Activation::gelu_tanh:
      return launch_tiles<T, false, Activated<GeluTanh>>(call);
    case Activation::none:
      break;
  }
  return launch_tiles<T, false, Same>(call);
}

CudaKernel prepare_quantise(const CudaKernelCall& call) {
  return with_float_type(call.in[0].dtype, [&](auto t) { return launch_steps<decltype(t)>(call); });
}

}  // namespace

extern const CudaKernels quantise_cuda = {{"quantise", prepare_quantise}};

}  // namespace trainctl
