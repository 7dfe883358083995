// Products from register tiles: a warp makes 32 x 32 of C, a thread 8 x 4 of them; a block has WM x WN such
// tiles, and G warps for each, which share k and add their sums up in a fixed order.
//
// What comes from global memory lies in shared memory as it lay, by cp.async a few stages ahead:
//   an operand that is contiguous along k as [rows][kStage + 4], read by four k at a time,
//   one that is contiguous along its rows as [kStage][rows], read by four rows at a time;
// either way a quarter of a warp reads 128 bytes from different banks, or one word together.
#include "engine/ops/matmul/finish_cuda.h"

namespace trainctl::cuda {
namespace {

struct Operand {
  const float* data;  ///< [rows,k], or [k,rows]
  int64_t step;       ///< to the next product's
  int rows, k;
};

struct Arguments {
  Operand a, b;  ///< b's rows are the columns of C
  Finish finish;
  float *a_sums, *b_sums;
  bool sums_accumulate;
};

/// 4 or 16 bytes to shared memory, in the background; zeros where `there` is false.
template <int kBytes>
__device__ void copy_async(float* to, const float* from, bool there) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  const int bytes = there ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
  }
#endif
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// One operand's part of a stage: kRows rows by kStage of k.
template <bool kAlongK, int kRows, int kStage, int kThreads, bool kVectors>
struct Part {
  static constexpr int kPitch = kAlongK ? kStage + 4 : kRows;
  static constexpr int kFloats = kAlongK ? kRows * kPitch : kStage * kPitch;

  __device__ static void load(float* to, const float* data, const Operand& o, int row0, int k0) {
    constexpr int kStep = kVectors ? 4 : 1;
    constexpr int kInner = kAlongK ? kStage : kRows, kOuter = kAlongK ? kRows : kStage;
    constexpr int kItems = kInner / kStep * kOuter;
#pragma unroll
    for (int first = 0; first < kItems; first += kThreads) {
      const int item = first + static_cast<int>(threadIdx.x);
      if (kItems % kThreads != 0 && item >= kItems) break;
      const int inner = item % (kInner / kStep) * kStep, outer = item / (kInner / kStep);
      const int row = row0 + (kAlongK ? outer : inner), k = k0 + (kAlongK ? inner : outer);
      const bool there = row < o.rows && k < o.k;
      const int64_t at = kAlongK ? static_cast<int64_t>(row) * o.k + k : static_cast<int64_t>(k) * o.rows + row;
      copy_async<kStep * 4>(to + outer * kPitch + inner, there ? data + at : data, there);
    }
  }

  /// fragment[k][i] for four k from `k` on. Thread t of kApart reads kCount rows: t, t + kApart, … where rows are
  /// apart in memory, else four neighbours at a time.
  template <int kCount, int kApart>
  __device__ static void fragment(const float* from, int row0, int t, int k, float (&f)[4][kCount]) {
    if constexpr (kAlongK) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float4 v = *reinterpret_cast<const float4*>(from + (row0 + t + i * kApart) * kPitch + k);
        f[0][i] = v.x, f[1][i] = v.y, f[2][i] = v.z, f[3][i] = v.w;
      }
    } else {
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) {
#pragma unroll
        for (int i = 0; i < kCount; i += 4) {
          const float4 v = *reinterpret_cast<const float4*>(from + (k + kk) * kPitch + row0 + i * kApart + t * 4);
          f[kk][i] = v.x, f[kk][i + 1] = v.y, f[kk][i + 2] = v.z, f[kk][i + 3] = v.w;
        }
      }
    }
  }
  /// The row, within the warp's, of element i of thread t's fragment.
  template <int kApart>
  __device__ static int row_of(int t, int i) {
    return kAlongK ? t + i * kApart : i / 4 * 4 * kApart + t * 4 + i % 4;
  }
};

template <bool kAAlongK, bool kBAlongK, int kWM, int kWN, int kG, int kStage_, int kStages_, bool kVectors>
struct Tile {
  static constexpr int kM = 32 * kWM, kN = 32 * kWN, kStage = kStage_, kStages = kStages_, kGroups = kG;
  static constexpr int kThreads = 32 * kWM * kWN * kG;
  using A = Part<kAAlongK, kM, kStage, kThreads, kVectors>;
  using B = Part<kBAlongK, kN, kStage, kThreads, kVectors>;
  static constexpr int kStageFloats = A::kFloats + B::kFloats;
  static constexpr int kPitch = kN + 8;
  static constexpr int kSums = kG * kM * kPitch;
  static constexpr int kShared = 4 * (kStages * kStageFloats > kSums ? kStages * kStageFloats : kSums);
  static constexpr int kItems = kM * kN / 4 / kThreads;  ///< of four neighbours, that a thread stores
};

/// Four neighbours of a row of C, or of what lies like it.
__device__ inline float4 load4(const float* row, int col, int n, bool vectors) {
  if (vectors) return col < n ? *reinterpret_cast<const float4*>(row + col) : float4{};
  float v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = col + i < n ? row[col + i] : 0.0f;
  return {v[0], v[1], v[2], v[3]};
}

__device__ inline void store4(float* row, int col, int n, bool vectors, float4 v) {
  if (vectors) {
    if (col < n) *reinterpret_cast<float4*>(row + col) = v;
    return;
  }
  const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (col + i < n) row[col + i] = values[i];
}

/// Which elements of C a thread stores in the end.
template <class T>
struct Place {
  int row, col, local;
  __device__ Place(int item, int row0, int col0) {
    const int e = (item * T::kThreads + static_cast<int>(threadIdx.x)) * 4;
    local = e / T::kN * T::kPitch + e % T::kN;
    row = row0 + e / T::kN;
    col = col0 + e % T::kN;
  }
};

/// The sum over k of each row of the stage, for the block that is the first of its row of blocks.
template <class P, int kRows, int kStage>
__device__ void add_row_sums(const float* stage, float& sum) {
  if (threadIdx.x >= kRows) return;
#pragma unroll 8
  for (int k = 0; k < kStage; ++k) {
    sum += P::kPitch == kRows ? stage[k * P::kPitch + threadIdx.x] : stage[threadIdx.x * P::kPitch + k];
  }
}

__device__ inline void store_row_sum(float* sums, int row, int rows, float sum, bool accumulate, float scale) {
  if (row < rows) sums[row] = sum * scale + (accumulate ? sums[row] : 0.0f);
}

template <class T>
__device__ void multiply(const float* stage, int wm, int wn, int group, float (&sums)[8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, ty = lane / 8, tx = lane % 8;
#pragma unroll
  for (int k = 0; k < T::kStage / T::kGroups; k += 4) {
    float a[4][8], b[4][4];
    T::A::template fragment<8, 4>(stage, wm * 32, ty, group * (T::kStage / T::kGroups) + k, a);
    T::B::template fragment<4, 8>(stage + T::A::kFloats, wn * 32, tx, group * (T::kStage / T::kGroups) + k, b);
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] += a[kk][i] * b[kk][j];
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads) tile_product(const Arguments args) {
  extern __shared__ float4 shared4[];
  float* const shared = reinterpret_cast<float*>(shared4);
  const int row0 = blockIdx.y * T::kM, col0 = blockIdx.x * T::kN;
  const int warp = static_cast<int>(threadIdx.x) / 32, group = warp / (T::kM / 32 * (T::kN / 32));
  const int wm = warp / (T::kN / 32) % (T::kM / 32), wn = warp % (T::kN / 32);
  const float* const a = args.a.data + blockIdx.z * args.a.step;
  const float* const b = args.b.data + blockIdx.z * args.b.step;
  const Finish& f = args.finish;
  const int64_t c_step = static_cast<int64_t>(blockIdx.z) * f.m * f.n;
  const int stages = (args.a.k + T::kStage - 1) / T::kStage;
  const bool sums_a = args.a_sums != nullptr && blockIdx.x == 0, sums_b = args.b_sums != nullptr && blockIdx.y == 0;
  let_next_kernel_start();
  wait_for_kernel_before();

  const auto load = [&](int stage) {
    if (stage < stages) {
      float* const to = shared + stage % T::kStages * T::kStageFloats;
      T::A::load(to, a, args.a, row0, stage * T::kStage);
      T::B::load(to + T::A::kFloats, b, args.b, col0, stage * T::kStage);
    }
    commit_copies();
  };
#pragma unroll
  for (int s = 0; s < T::kStages - 1; ++s) load(s);
  float4 old[T::kItems];
#pragma unroll
  for (int i = 0; i < T::kItems; ++i) {
    const Place<T> at(i, row0, col0);
    const bool there = f.accumulate && at.row < f.m;
    old[i] = there ? load4(f.c + c_step + static_cast<int64_t>(at.row) * f.n, at.col, f.n, f.vectors) : float4{};
  }

  float sums[8][4] = {};
  float row_sum = 0, col_sum = 0;
  for (int s = 0; s < stages; ++s) {
    wait_for_copies<T::kStages - 2>();
    __syncthreads();
    load(s + T::kStages - 1);  // where stage s - 1 was, which all warps are done with
    const float* const stage = shared + s % T::kStages * T::kStageFloats;
    multiply<T>(stage, wm, wn, group, sums);
    if (sums_a) add_row_sums<typename T::A, T::kM, T::kStage>(stage, row_sum);
    if (sums_b) add_row_sums<typename T::B, T::kN, T::kStage>(stage + T::A::kFloats, col_sum);
  }
  wait_for_copies<0>();
  __syncthreads();

  const int lane = static_cast<int>(threadIdx.x) % 32, ty = lane / 8, tx = lane % 8;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int row = wm * 32 + T::A::template row_of<4>(ty, i), col = wn * 32 + T::B::template row_of<8>(tx, j);
      shared[group * T::kM * T::kPitch + row * T::kPitch + col] = sums[i][j];
    }
  }
  __syncthreads();
  const float scale = scale_of(f);
  if (sums_a && threadIdx.x < T::kM)
    store_row_sum(args.a_sums, row0 + threadIdx.x, f.m, row_sum, args.sums_accumulate, scale);
  if (sums_b && threadIdx.x < T::kN)
    store_row_sum(args.b_sums, col0 + threadIdx.x, f.n, col_sum, args.sums_accumulate, scale);
#pragma unroll
  for (int i = 0; i < T::kItems; ++i) {
    const Place<T> at(i, row0, col0);
    if (at.row >= f.m) continue;
    float4 sum{};
#pragma unroll
    for (int g = 0; g < T::kGroups; ++g) {
      const float4 v = *reinterpret_cast<const float4*>(shared + g * T::kM * T::kPitch + at.local);
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    const int64_t row = c_step + static_cast<int64_t>(at.row) * f.n;
    const float4 bias = f.bias != nullptr ? load4(f.bias, at.col, f.n, false) : float4{};
    const float4 result = f.relu_result != nullptr ? load4(f.relu_result + row, at.col, f.n, f.vectors) : float4{};
    sum.x = finished(f, scale, sum.x, old[i].x, bias.x, result.x);
    sum.y = finished(f, scale, sum.y, old[i].y, bias.y, result.y);
    sum.z = finished(f, scale, sum.z, old[i].z, bias.z, result.z);
    sum.w = finished(f, scale, sum.w, old[i].w, bias.w, result.w);
    store4(f.c + row, at.col, f.n, f.vectors, sum);
  }
}

template <class T>
CudaKernel prepare(const Arguments& args, int64_t batch) {
  cuda_check(cudaFuncSetAttribute(tile_product<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, T::kShared),
             "the shared memory of tile_product");
  const dim3 grid(static_cast<unsigned>(ceil_div(args.finish.n, T::kN)),
                  static_cast<unsigned>(ceil_div(args.finish.m, T::kM)), static_cast<unsigned>(batch));
  return [=](CudaStream stream) {
    launch(tile_product<T>, grid, dim3(T::kThreads), T::kShared, stream, "tile_product", args);
  };
}

/// Long sums are shared by eight warps, shorter ones by four; where k is short too, tiles are wider instead.
template <bool kAAlongK, bool kBAlongK, bool kVectors>
CudaKernel prepare_shape(const Arguments& args, int64_t batch) {
  const int64_t tiles = ceil_div(args.finish.m, 32) * ceil_div(args.finish.n, 32) * batch;
  if (args.a.k <= 64) return prepare<Tile<kAAlongK, kBAlongK, 1, 2, 1, 32, 2, kVectors>>(args, batch);
  if (tiles <= 132) return prepare<Tile<kAAlongK, kBAlongK, 1, 1, 8, 64, 3, kVectors>>(args, batch);
  return prepare<Tile<kAAlongK, kBAlongK, 1, 1, 4, 32, 3, kVectors>>(args, batch);
}

template <bool kVectors>
CudaKernel prepare_layout(const Product& p, const Arguments& args) {
  if (!p.transpose_a && p.transpose_b) return prepare_shape<true, true, kVectors>(args, p.batch);
  if (!p.transpose_a) return prepare_shape<true, false, kVectors>(args, p.batch);
  if (!p.transpose_b) return prepare_shape<false, false, kVectors>(args, p.batch);
  return prepare_shape<false, true, kVectors>(args, p.batch);
}

}  // namespace

std::optional<CudaKernel> prepare_tile(const Product& p) {
  constexpr int64_t kMost = int64_t{1} << 30;  // of what is counted in int
  const bool sums = p.a_sums != nullptr || p.b_sums != nullptr;
  const bool fits = can_finish(p) && p.m < 32 * 65535 && p.n < kMost && p.k < kMost && p.batch < 65536;
  if (!fits || (sums && p.batch != 1)) return std::nullopt;
  const auto number = [](int64_t v) { return static_cast<int>(v); };
  const Arguments args{{static_cast<const float*>(p.a), p.a_step, number(p.m), number(p.k)},
                       {static_cast<const float*>(p.b), p.b_step, number(p.n), number(p.k)},
                       finish_of(p),
                       p.a_sums,
                       p.b_sums,
                       p.sums_accumulate};
  const auto in_fours = [](int64_t contiguous, const void* data, int64_t step) {
    return contiguous % 4 == 0 && step % 4 == 0 && is_aligned(data);
  };
  const bool vectors =
      in_fours(p.transpose_a ? p.m : p.k, p.a, p.a_step) && in_fours(p.transpose_b ? p.k : p.n, p.b, p.b_step);
  return vectors ? prepare_layout<true>(p, args) : prepare_layout<false>(p, args);
}

}  // namespace trainctl::cuda
