// The weight gradient of a convolution as a matrix product on tensor cores:
//
//   dw [k, r s c] = dy [windows, k]^T * x under the windows [windows, r s c]
//
//   memory --cp.async--> ring of stages in shared memory --ldmatrix.trans--> mma.sync m16n8k16 --> parts in f32
//
// A stage has kTileDepth windows, with a row of dy and a row of x for each. The copy fills padding, and rows beyond the
// end, with zeros. ldmatrix transposes both operands. The 16-byte chunks of a row are permuted by its number, so that 8
// rows at one column are in different banks.
#include "engine/ops/conv2d/conv_layout_cuda.h"
#include "engine/ops/conv2d/conv_tiles.h"
#include "engine/ops/conv2d/conv_tiles_cuda.h"
#include "engine/ops/cuda/launch_cuda.h"
#include "engine/ops/cuda/rows_cuda.cuh"
#include "engine/ops/cuda/strided_cuda.cuh"

namespace trainctl {
namespace {

constexpr int kConvTileThreads = 256, kStages = 4;
constexpr int kCols = int(kTileColumns), kConvTileDepth = int(kTileDepth);

/// Sizes of one group of channels, in the layout in which the images are read.
struct ConvTileSizes {
  int c = 0, k = 0, cols = 0;
  int x_channels = 0, y_channels = 0;
  int height = 0, width = 0;
  int stride[2] = {}, dilation[2] = {}, before[2] = {};
  Divisor by_c, by_s, by_y_width, by_y_pixels;

  ConvTileSizes(const ConvShape& s, const ConvTiles& t)
      : c(int(t.x_channels / s.groups)),
        k(int(t.y_channels / s.groups)),
        cols(int(s.window.kernel[0] * s.window.kernel[1]) * c),
        x_channels(int(t.x_channels)),
        y_channels(int(t.y_channels)),
        height(int(s.x.size[0])),
        width(int(s.x.size[1])),
        by_c(c),
        by_s(s.window.kernel[1]),
        by_y_width(s.y.size[1]),
        by_y_pixels(s.y.pixels()) {
    for (size_t d = 0; d < 2; ++d) {
      stride[d] = int(s.window.stride[d]), dilation[d] = int(s.window.dilation[d]);
      before[d] = int(s.window.before[d]);
    }
  }
};

template <int kBytes>
__device__ void copy_or_zero(uint32_t to, const void* from, bool there) {
  const int bytes = there ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  }
}

/// Four 8 x 8 matrices, transposed: lane i has the address of row i % 8 of matrix i / 8.
__device__ void load_transposed(uint32_t (&to)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}

__device__ void multiply(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// The part of dy that a thread copies to shared memory: one column of chunks from every kStep-th window.
template <int kRows>
struct DyCopies {
  static constexpr int kChunks = kRows / 8, kStep = kConvTileThreads / kChunks;
  const bf16* from;
  int channels, first;
  uint32_t to;
  bool there;

  __device__ DyCopies(const ConvTileSizes& s, const bf16* dy, int group, int row0) : channels(s.y_channels) {
    const int chunk = int(threadIdx.x) % kChunks, row = row0 + chunk * 8;
    first = int(threadIdx.x) / kChunks;
    from = dy + group * s.k;
    there = row < s.k;
    if (there) from += row;
    // kStep is a multiple of 8, so the permutation is the same in all of its windows.
    to = (first * kChunks + (chunk ^ (first & 7))) * 16;
  }
  __device__ void issue(uint32_t stage, uint32_t window0, uint32_t end) const {
#pragma unroll
    for (int i = 0; i < kConvTileDepth / kStep; ++i) {
      const uint32_t window = window0 + first + i * kStep;
      const bool inside = there && window < end;
      copy_or_zero<16>(stage + to + i * kStep * kChunks * 16, from + (inside ? int64_t{window} * channels : 0), inside);
    }
  }
};

/// The part of x that a thread copies: one column of pieces of kVector channels from every kStep-th window.
template <int kVector>
struct XCopies {
  static constexpr int kPieces = kCols / kVector, kStep = kConvTileThreads / kPieces, kChunks = kCols / 8;
  const bf16* from;
  int first, down, right;
  uint32_t to;
  bool there;

  __device__ XCopies(const ConvTileSizes& s, const bf16* x, int group, int col0) {
    const int piece = int(threadIdx.x) % kPieces, col = col0 + piece * kVector;
    first = int(threadIdx.x) / kPieces;
    there = col < s.cols;
    const uint32_t pixel = s.by_c.quotient(there ? col : 0), r = s.by_s.quotient(pixel);
    from = x + group * s.c + (there ? col - int(pixel) * s.c : 0);
    down = int(r) * s.dilation[0] - s.before[0];
    right = int(pixel - r * s.by_s.by) * s.dilation[1] - s.before[1];
    const int chunk = piece * kVector / 8;
    to = (first * kChunks + (chunk ^ (first & 7))) * 16 + piece * kVector % 8 * 2;
  }
  __device__ void issue(const ConvTileSizes& s, uint32_t stage, uint32_t window0, uint32_t end) const {
#pragma unroll
    for (int i = 0; i < kConvTileDepth / kStep; ++i) {
      const uint32_t window = window0 + first + i * kStep;
      const uint32_t image = s.by_y_pixels.quotient(window), rest = window - image * s.by_y_pixels.by;
      const uint32_t p = s.by_y_width.quotient(rest), q = rest - p * s.by_y_width.by;
      const int h = int(p) * s.stride[0] + down, w = int(q) * s.stride[1] + right;
      const bool inside = there && window < end && uint32_t(h) < uint32_t(s.height) && uint32_t(w) < uint32_t(s.width);
      const int64_t pixel = int64_t{int(image)} * (s.height * s.width) + (h * s.width + w);
      copy_or_zero<kVector * 2>(stage + to + i * kStep * kChunks * 16, from + (inside ? pixel * s.x_channels : 0),
                                inside);
    }
  }
};

/// Bytes of a stage: dy, then x.
template <int kRows>
inline constexpr uint32_t kStageBytes = kConvTileDepth*(kRows + kCols) * 2;

/// Writes a warp's sums of a tile to memory, [k, cols] of `out`; (row, col): of this lane's first sum.
template <int kHigh, int kWide>
__device__ __forceinline__ void store_weight_sums(const ConvTileSizes& s, const float (&sums)[kHigh][kWide][4],
                                                  float* out, int row0, int col0) {
#pragma unroll
  for (int i = 0; i < kHigh; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row0 + i * 16 + half * 8;
      if (row >= s.k) continue;
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        const int col = col0 + j * 8;
        if (col < s.cols)
          *reinterpret_cast<float2*>(out + int64_t{row} * s.cols + col) =
              make_float2(sums[i][j][half * 2], sums[i][j][half * 2 + 1]);
      }
    }
  }
}

/// blockIdx.x: tiles of columns, of rows, groups; blockIdx.y: a part of the windows.
/// 8 warps, 2 along the rows and 4 along the columns.
template <int kRows, int kVector>
__global__ void __launch_bounds__(kConvTileThreads, int(kTileBlocks))
    weight_tiles_kernel(ConvTileSizes s, const bf16* x, const bf16* dy, float* parts, int64_t part_size,
                        uint32_t windows, uint32_t of_part, uint32_t row_tiles, uint32_t col_tiles) {
  extern __shared__ uint4 tiles_shared[];
  wait_for_kernel_before();
  let_next_kernel_start();
  const uint32_t col_tile = blockIdx.x % col_tiles, rest = blockIdx.x / col_tiles;
  const int group = int(rest / row_tiles), row0 = int(rest % row_tiles) * kRows, col0 = int(col_tile) * kCols;
  const uint32_t begin = blockIdx.y * of_part, end = min(windows, begin + of_part);
  const int steps = int((end - begin + kConvTileDepth - 1) / kConvTileDepth);
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(tiles_shared));
  constexpr uint32_t kXAt = kConvTileDepth * kRows * 2;
  const DyCopies<kRows> of_dy(s, dy, group, row0);
  const XCopies<kVector> of_x(s, x, group, col0);
  const auto copy = [&](int step) {
    if (step < steps) {
      const uint32_t stage = shared + uint32_t(step % kStages) * kStageBytes<kRows>, at = begin + step * kConvTileDepth;
      of_dy.issue(stage, at, end);
      of_x.issue(s, stage + kXAt, at, end);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };

  constexpr int kHigh = kRows / 2 / 16, kWide = 2;  // tiles of 16 x 16 per warp
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, matrix = lane / 8, line = lane % 8;
  const int warp_row = warp % 2 * (kRows / 2), warp_col = warp / 2 * 32;
  // Each lane helps to load four matrices, with windows as rows and channels as columns.
  const int dy_window = matrix / 2 * 8 + line, dy_chunk = warp_row / 8 + matrix % 2;
  const int x_window = matrix % 2 * 8 + line, x_chunk = warp_col / 8 + matrix / 2;
  float sums[kHigh][kWide * 2][4] = {};

#pragma unroll
  for (int step = 0; step < kStages - 1; ++step) copy(step);
  for (int step = 0; step < steps; ++step) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
    __syncthreads();
    copy(step + kStages - 1);
    const uint32_t of_dys = shared + uint32_t(step % kStages) * kStageBytes<kRows>, of_xs = of_dys + kXAt;
#pragma unroll
    for (int d = 0; d < kConvTileDepth; d += 16) {
      uint32_t a[kHigh][4], b[kWide][4];
#pragma unroll
      for (int i = 0; i < kHigh; ++i)
        load_transposed(a[i], of_dys + ((d + dy_window) * (kRows / 8) + ((dy_chunk + i * 2) ^ line)) * 16);
#pragma unroll
      for (int j = 0; j < kWide; ++j)
        load_transposed(b[j], of_xs + ((d + x_window) * (kCols / 8) + ((x_chunk + j * 2) ^ line)) * 16);
#pragma unroll
      for (int i = 0; i < kHigh; ++i) {
#pragma unroll
        for (int j = 0; j < kWide * 2; ++j) multiply(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");

  float* const out = parts + blockIdx.y * part_size + int64_t{group} * s.k * s.cols;
  store_weight_sums(s, sums, out, row0 + warp_row + lane / 4, col0 + warp_col + lane % 4 * 2);
}

/// The weight without padding: [rows, channels, window].
struct Result {
  int rows = 0, channels = 0, window = 0;
  Divisor by_cols, by_c;  ///< divisors for indices in a part
};

/// kLines threads for each element: each adds every kLines-th part, then their sums are added in order.
template <class W, int kLines>
__global__ void __launch_bounds__(kConvTileThreads)
    add_tiles_kernel(const float* parts, int count, int64_t part_size, Result r, W* dw, bool accumulate) {
  constexpr int kElements = kConvTileThreads / kLines;
  __shared__ float of_line[kLines][kElements];
  wait_for_kernel_before();
  let_next_kernel_start();
  const int at = int(threadIdx.x) % kElements, line = int(threadIdx.x) / kElements;
  const int64_t i = int64_t{blockIdx.x} * kElements + at;
  float sum = 0;
  if (i < part_size) {
#pragma unroll 4
    for (int part = line; part < count; part += kLines) sum += parts[part * part_size + i];
  }
  if constexpr (kLines > 1) {
    of_line[line][at] = sum;
    __syncthreads();
    if (line > 0) return;
#pragma unroll
    for (int other = 1; other < kLines; ++other) sum += of_line[other][at];
  }
  if (i >= part_size) return;
  const uint32_t row = r.by_cols.quotient(uint32_t(i)), col = uint32_t(i) - row * r.by_cols.by;
  const uint32_t pixel = r.by_c.quotient(col), channel = col - pixel * r.by_c.by;
  if (row >= uint32_t(r.rows) || channel >= uint32_t(r.channels)) return;
  W* const to = dw + (int64_t{row} * r.channels + channel) * r.window + pixel;
  *to = from_f32<W>(accumulate ? to_f32(*to) + sum : sum);
}

template <int kRows, int kVector>
void run_tiles(CudaStream stream, const ConvTileSizes& s, const ConvTiles& t, int64_t groups, const bf16* x,
               const bf16* dy, float* parts, int64_t windows) {
  const int64_t row_tiles = ceil_div(s.k, kRows), col_tiles = ceil_div(s.cols, kCols);
  const dim3 grid(static_cast<unsigned>(row_tiles * col_tiles * groups), static_cast<unsigned>(t.parts));
  launch(weight_tiles_kernel<kRows, kVector>, grid, kConvTileThreads, kStages * kStageBytes<kRows>, stream, "conv2d", s,
         x, dy, parts, t.part_bytes / 4, uint32_t(windows), uint32_t(t.of_part), uint32_t(row_tiles),
         uint32_t(col_tiles));
}

/// Calls run(rows of a tile, channels of a copy) with the numbers as compile-time constants.
template <class Run>
void with_tile(const ConvTiles& t, Run run) {
  using std::integral_constant;
  const auto with_vector = [&](auto rows) {
    t.vector == 8 ? run(rows, integral_constant<int, 8>{}) : run(rows, integral_constant<int, 4>{});
  };
  t.rows == 64 ? with_vector(integral_constant<int, 64>{}) : with_vector(integral_constant<int, 128>{});
}

void add_parts(CudaStream stream, const float* parts, int64_t count, int64_t part_size, const Result& r,
               const TensorArg& dw) {
  with_float_type(dw.dtype, [&](auto type) {
    using W = decltype(type);
    const auto with_lines = [&](auto lines) {
      constexpr int kLines = lines;
      launch(add_tiles_kernel<W, kLines>, static_cast<unsigned>(ceil_div(part_size, kConvTileThreads / kLines)),
             kConvTileThreads, 0, stream, "conv2d", parts, int(count), part_size, r, dw.as<W>(), dw.accumulate);
    };
    count >= 16 ? with_lines(std::integral_constant<int, 8>{}) : with_lines(std::integral_constant<int, 1>{});
  });
}

std::optional<ConvTiles> tiles_for(const ConvShape& s, const ConvTensors& tensors) {
  const auto is_aligned = [](const TensorArg& t) { return reinterpret_cast<uintptr_t>(t.data) % 16 == 0; };
  return tiles_of(s, tensors.x.dtype, is_aligned(tensors.x), is_aligned(tensors.y), multiprocessors());
}

}  // namespace

bool can_tile(const ConvShape& s, const ConvTensors& tensors) { return tiles_for(s, tensors).has_value(); }

CudaKernel weight_grad_by_tiles(const ConvShape& s, const ConvTensors& tensors, CudaScratch* scratch) {
  const std::optional<ConvTiles> tiles = tiles_for(s, tensors);
  if (!tiles) return nullptr;
  const ConvTiles& t = *tiles;
  scratch->need(t.scratch());
  const ConvTileSizes size(s, t);
  with_tile(t, [](auto rows, auto vector) {
    ask_for_shared(weight_tiles_kernel<decltype(rows)::value, decltype(vector)::value>,
                   kStages * kStageBytes<decltype(rows)::value>, "conv2d");
  });
  const int64_t window = s.window.kernel[0] * s.window.kernel[1];
  const Result result{int(s.y.c), int(s.x.c / s.groups), int(window), Divisor(size.cols), Divisor(size.c)};
  const int64_t of_slice = s.x.n / t.slices;
  return [=, x = tensors.x.as<bf16>(), dy = tensors.y.as<bf16>(), dw = tensors.w](CudaStream stream) {
    auto* const x_copy = static_cast<std::byte*>(scratch->memory());
    std::byte* const y_copy = x_copy + t.x_room;
    auto* const parts = reinterpret_cast<float*>(y_copy + t.y_room);
    for (int64_t i = 0; i < t.slices; ++i) {
      const bf16* xs = x + i * of_slice * s.x.pixels() * s.x.c;
      const bf16* dys = dy + i * of_slice * s.y.pixels() * s.y.c;
      const auto copied = [&](const bf16* from, const Images& images, std::byte* to, int64_t channels) {
        copy_rows(stream, DType::bf16, from, images.c, to, channels, of_slice * images.pixels());
        return reinterpret_cast<const bf16*>(to);
      };
      if (t.x_copied) xs = copied(xs, s.x, x_copy, t.x_channels);
      if (t.y_copied) dys = copied(dys, s.y, y_copy, t.y_channels);
      with_tile(t, [&](auto rows, auto vector) {
        run_tiles<decltype(rows)::value, decltype(vector)::value>(
            stream, size, t, s.groups, xs, dys, parts + i * t.parts * (t.part_bytes / 4), of_slice * s.y.pixels());
      });
    }
    add_parts(stream, parts, t.slices * t.parts, t.part_bytes / 4, result, dw);
  };
}

}  // namespace trainctl
