// Products from register tiles. A warp makes a tile of C, 32 x 32 or 64 x 32, a thread 8 x 4 or 8 x 8 of it. A block
// has kWide such tiles side by side and kGroups warps for each, which share k; and the blocks of a cluster, which
// make the same tile, share k once more. Sums of groups and of blocks are added up in a fixed order.
//
// What comes from global memory lies in shared memory as it lay, by cp.async a few stages ahead:
//   an operand that is contiguous along k as [rows][kStage + 4], read by four k at a time,
//   one that is contiguous along its rows as [kStage][rows], read by four rows at a time;
// either way a quarter of a warp reads from different banks, or the same words.
//
// What small products cost, seen on an H200: 1.5 us for a launch in a chain; L2 gives all multiprocessors together
// about 3 TB/s when they read the same matrices (so k is cut, which reads an operand fewer times, before tiles are
// made smaller); code that runs once is fetched at about 10 KiB a microsecond (so nothing is unrolled twice).
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
  int blocks = 1, share = 0;  ///< of a cluster, and how much of k each takes
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

  /// Zeros beyond the last row and from k = `end` on.
  __device__ static void load(float* to, const float* data, const Operand& o, int row0, int k0, int end) {
    constexpr int kStep = kVectors ? 4 : 1;
    constexpr int kInner = kAlongK ? kStage : kRows, kOuter = kAlongK ? kRows : kStage;
    constexpr int kItems = kInner / kStep * kOuter;
#pragma unroll
    for (int first = 0; first < kItems; first += kThreads) {
      const int item = first + static_cast<int>(threadIdx.x);
      if (kItems % kThreads != 0 && item >= kItems) break;
      const int inner = item % (kInner / kStep) * kStep, outer = item / (kInner / kStep);
      const int row = row0 + (kAlongK ? outer : inner), k = k0 + (kAlongK ? inner : outer);
      const bool there = row < o.rows && k < end;
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

/// Threads of a warp stand in kTall rows and 32 / kTall columns, each with 8 x kCols of the warp's tile.
template <bool kAAlongK, bool kBAlongK, int kTall_, int kCols_, int kWide_, int kGroups_, int kStages_, bool kVectors>
struct Tile {
  static constexpr int kTall = kTall_, kFlat = 32 / kTall_, kCols = kCols_, kWide = kWide_, kGroups = kGroups_;
  static constexpr int kWarpCols = kFlat * kCols;
  static constexpr int kM = 8 * kTall, kN = kWarpCols * kWide, kStage = 32, kStages = kStages_;
  static constexpr int kThreads = 32 * kWide * kGroups;
  using A = Part<kAAlongK, kM, kStage, kThreads, kVectors>;
  using B = Part<kBAlongK, kN, kStage, kThreads, kVectors>;
  static constexpr int kStageFloats = A::kFloats + B::kFloats;
  static constexpr int kPitch = kN + 8;
  static constexpr int kSums = kGroups * kM * kPitch;  ///< then the sums of rows
  static constexpr int kFloats = kSums + kM + kN > kStages* kStageFloats ? kSums + kM + kN : kStages* kStageFloats;
  static constexpr int kShared = 4 * kFloats;
  static constexpr int kFours = kM * kN / 4;                         ///< of four neighbours in the block's tile
  static constexpr int kItems = (kFours + kThreads - 1) / kThreads;  ///< of them that a thread stores
  static constexpr bool kInFours = kVectors;
  static constexpr bool kSumsRows = !kAAlongK && !kBAlongK;  ///< as a weight's gradient lies; code for no other
};

/// All threads of all blocks of the cluster; what they wrote to shared memory before is there after.
__device__ inline void wait_for_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
/// Four floats of another block's shared memory, from where `own` is in this one's.
__device__ inline float4 from_block(const float* own, int block) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(own));
  float4 v;
  asm volatile(
      "{.reg .b32 there;\nmapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(address), "r"(block)
      : "memory");
  return v;
#else
  return *reinterpret_cast<const float4*>(own);
#endif
}

__device__ inline float relu(float v) { return v < 0.0f ? 0.0f : v; }  // a NaN stays one
__device__ inline void add(float4& to, const float4& v) { to.x += v.x, to.y += v.y, to.z += v.z, to.w += v.w; }

/// Four neighbours of a row of C, or of what lies like it.
template <bool kVectors>
__device__ float4 load4(const float* row, int col, int n) {
  if constexpr (kVectors) {
    return col < n ? *reinterpret_cast<const float4*>(row + col) : float4{};
  } else {
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = col + i < n ? row[col + i] : 0.0f;
    return {v[0], v[1], v[2], v[3]};
  }
}

template <bool kVectors>
__device__ void store4(float* row, int col, int n, const float4& v) {
  if constexpr (kVectors) {
    if (col < n) *reinterpret_cast<float4*>(row + col) = v;
  } else {
    const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (col + i < n) row[col + i] = values[i];
  }
}

/// Which four elements of C are item `four` of the block's tile.
template <class T>
struct Place {
  int row, col, local;
  __device__ Place(int four, int row0, int col0)
      : row(row0 + four / (T::kN / 4)),
        col(col0 + four % (T::kN / 4) * 4),
        local(four / (T::kN / 4) * T::kPitch + four % (T::kN / 4) * 4) {}
};

/// The sum over k of each row of the stage, for the block that is the first of its row of blocks.
template <class P, int kRows, int kStage>
__device__ void add_row_sums(const float* stage, float& sum) {
  if (threadIdx.x >= kRows) return;
#pragma unroll 4
  for (int k = 0; k < kStage; ++k) {
    sum += P::kPitch == kRows ? stage[k * P::kPitch + threadIdx.x] : stage[threadIdx.x * P::kPitch + k];
  }
}

/// The sums of rows of all blocks of the cluster, of which `own` are this one's.
__device__ inline void store_row_sums(float* sums, const float* own, int count, int row0, int rows, int blocks,
                                      bool accumulate, float scale) {
  const int t = static_cast<int>(threadIdx.x) * 4;
  if (t >= count) return;
  float4 sum{};
#pragma unroll 1
  for (int block = 0; block < blocks; ++block) add(sum, from_block(own + t, block));
  const float values[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = row0 + t + i;
    if (row < rows) sums[row] = values[i] * scale + (accumulate ? sums[row] : 0.0f);
  }
}

template <class T>
__device__ void multiply(const float* stage, int wide, int group, float (&sums)[8][T::kCols]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, ty = lane / T::kFlat, tx = lane % T::kFlat;
#pragma unroll 1
  for (int k = 0; k < T::kStage / T::kGroups; k += 4) {
    float a[4][8], b[4][T::kCols];
    const int at = group * (T::kStage / T::kGroups) + k;
    T::A::template fragment<8, T::kTall>(stage, 0, ty, at, a);
    T::B::template fragment<T::kCols, T::kFlat>(stage + T::A::kFloats, wide * T::kWarpCols, tx, at, b);
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < T::kCols; ++j) sums[i][j] += a[kk][i] * b[kk][j];
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads) tile_product(const Arguments args) {
  extern __shared__ float4 shared4[];
  float* const shared = reinterpret_cast<float*>(shared4);
  const int blocks = args.blocks, block = static_cast<int>(blockIdx.x) % blocks;  // of the cluster
  const int row0 = blockIdx.y * T::kM, col0 = static_cast<int>(blockIdx.x) / blocks * T::kN;
  const int warp = static_cast<int>(threadIdx.x) / 32, group = warp / T::kWide, wide = warp % T::kWide;
  const float* const a = args.a.data + blockIdx.z * args.a.step;
  const float* const b = args.b.data + blockIdx.z * args.b.step;
  const Finish& f = args.finish;
  const int64_t c_step = static_cast<int64_t>(blockIdx.z) * f.m * f.n;
  const int k0 = block * args.share, end = min(k0 + args.share, args.a.k);
  const int stages = max((end - k0 + T::kStage - 1) / T::kStage, 0);
  const bool sums_a = T::kSumsRows && args.a_sums != nullptr && col0 == 0;
  const bool sums_b = T::kSumsRows && args.b_sums != nullptr && row0 == 0;
  // The items that this block stores.
  const int first = T::kFours / blocks * block + static_cast<int>(threadIdx.x), last = T::kFours / blocks * (block + 1);
  let_next_kernel_start();
  wait_for_kernel_before();

  float4 old[T::kItems];
#pragma unroll
  for (int i = 0; i < T::kItems; ++i) {
    const Place<T> at(first + i * T::kThreads, row0, col0);
    const bool there = f.accumulate && first + i * T::kThreads < last && at.row < f.m;
    old[i] = there ? load4<T::kInFours>(f.c + c_step + static_cast<int64_t>(at.row) * f.n, at.col, f.n) : float4{};
  }

  float sums[8][T::kCols] = {};
  float row_sum = 0, col_sum = 0;
  int now = 0, next = 0;  // where in shared memory the stage that is worked on lies, and the one that is fetched
#pragma unroll 1
  for (int s = 1 - T::kStages; s < stages; ++s) {
    if (s >= 0) {
      wait_for_copies<T::kStages - 2>();
      __syncthreads();
    }
    if (const int fetched = s + T::kStages - 1; fetched < stages) {  // to where all warps are done
      T::A::load(shared + next, a, args.a, row0, k0 + fetched * T::kStage, end);
      T::B::load(shared + next + T::A::kFloats, b, args.b, col0, k0 + fetched * T::kStage, end);
      next = next + T::kStageFloats < T::kStages * T::kStageFloats ? next + T::kStageFloats : 0;
    }
    commit_copies();
    if (s < 0) continue;
    multiply<T>(shared + now, wide, group, sums);
    if (sums_a) add_row_sums<typename T::A, T::kM, T::kStage>(shared + now, row_sum);
    if (sums_b) add_row_sums<typename T::B, T::kN, T::kStage>(shared + now + T::A::kFloats, col_sum);
    now = now + T::kStageFloats < T::kStages * T::kStageFloats ? now + T::kStageFloats : 0;
  }
  wait_for_copies<0>();
  __syncthreads();

  const int lane = static_cast<int>(threadIdx.x) % 32, ty = lane / T::kFlat, tx = lane % T::kFlat;
  float* const of_group = shared + group * T::kM * T::kPitch + wide * T::kWarpCols;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float* const row = of_group + T::A::template row_of<T::kTall>(ty, i) * T::kPitch;
#pragma unroll
    for (int j = 0; j < T::kCols; ++j) row[T::B::template row_of<T::kFlat>(tx, j)] = sums[i][j];
  }
  if (sums_a && threadIdx.x < T::kM) shared[T::kSums + threadIdx.x] = row_sum;
  if (sums_b && threadIdx.x < T::kN) shared[T::kSums + T::kM + threadIdx.x] = col_sum;
  __syncthreads();
  if (blocks > 1) {
#pragma unroll 1
    for (int four = threadIdx.x; four < T::kFours; four += T::kThreads) {
      float* const at = shared + Place<T>(four, 0, 0).local;
      float4 sum = *reinterpret_cast<const float4*>(at);
#pragma unroll 1
      for (int g = 1; g < T::kGroups; ++g) add(sum, *reinterpret_cast<const float4*>(at + g * T::kM * T::kPitch));
      *reinterpret_cast<float4*>(at) = sum;
    }
    wait_for_cluster();
  }

  const float scale = scale_of(f);
  if (sums_a && block == 0)
    store_row_sums(args.a_sums, shared + T::kSums, T::kM, row0, f.m, blocks, args.sums_accumulate, scale);
  if (sums_b && block == 0)
    store_row_sums(args.b_sums, shared + T::kSums + T::kM, T::kN, col0, f.n, blocks, args.sums_accumulate, scale);
#pragma unroll
  for (int i = 0; i < T::kItems; ++i) {
    const Place<T> at(first + i * T::kThreads, row0, col0);
    if (first + i * T::kThreads >= last || at.row >= f.m) continue;
    float4 sum{};
    if (blocks > 1) {
#pragma unroll 1
      for (int other = 0; other < blocks; ++other) add(sum, from_block(shared + at.local, other));
    } else {
#pragma unroll 1
      for (int g = 0; g < T::kGroups; ++g)
        add(sum, *reinterpret_cast<const float4*>(shared + g * T::kM * T::kPitch + at.local));
    }
    const int64_t row = c_step + static_cast<int64_t>(at.row) * f.n;
    sum = {sum.x * scale + old[i].x, sum.y * scale + old[i].y, sum.z * scale + old[i].z, sum.w * scale + old[i].w};
    if (f.bias != nullptr) add(sum, load4<T::kInFours>(f.bias, at.col, f.n));
    if (f.relu) sum = {relu(sum.x), relu(sum.y), relu(sum.z), relu(sum.w)};
    if (f.relu_result != nullptr) {
      const float4 y = load4<T::kInFours>(f.relu_result + row, at.col, f.n);
      sum = {y.x > 0 ? sum.x : 0.0f, y.y > 0 ? sum.y : 0.0f, y.z > 0 ? sum.z : 0.0f, y.w > 0 ? sum.w : 0.0f};
    }
    store4<T::kInFours>(f.c + row, at.col, f.n, sum);
  }
  if (blocks > 1) wait_for_cluster();  // others may still read this block's shared memory
}

bool has_clusters() {
  int device = 0, major = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  return major >= 9;
}

/// `blocks` share k, by multiples of 4.
template <class T>
CudaKernel prepare(Arguments args, int64_t batch, int blocks) {
  args.blocks = blocks;
  args.share = static_cast<int>(ceil_div(ceil_div(args.a.k, blocks), 4) * 4);
  cuda_check(cudaFuncSetAttribute(tile_product<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, T::kShared),
             "the shared memory of tile_product");
  const dim3 grid(static_cast<unsigned>(ceil_div(args.finish.n, T::kN) * blocks),
                  static_cast<unsigned>(ceil_div(args.finish.m, T::kM)), static_cast<unsigned>(batch));
  return [=](CudaStream stream) {
    cudaLaunchAttribute attributes[2]{};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = static_cast<unsigned>(blocks);
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(T::kThreads);
    config.dynamicSmemBytes = T::kShared;
    config.stream = stream;
    config.attrs = overlap_kernels ? attributes : attributes + 1;
    config.numAttrs = (overlap_kernels ? 1 : 0) + (blocks > 1 ? 1 : 0);
    cuda_check(cudaLaunchKernelEx(&config, tile_product<T>, args), "tile_product");
  };
}

/// Blocks that may share k: as many as multiprocessors are free for, each with enough of it.
int blocks_for(int64_t tiles, int64_t k, int64_t least, int most) {
  int blocks = 1;
  while (blocks < most && tiles * blocks * 2 <= multiprocessors() && k / (blocks * 2) >= least && has_clusters())
    blocks *= 2;
  return blocks;
}

template <bool kAAlongK, bool kBAlongK, bool kVectors>
CudaKernel prepare_shape(const Arguments& args, int64_t batch) {
  const auto tiles = [&](int64_t m, int64_t n) {
    return ceil_div(args.finish.m, m) * ceil_div(args.finish.n, n) * batch;
  };
  const int64_t k = args.a.k;
  if (k <= 64) return prepare<Tile<kAAlongK, kBAlongK, 4, 4, 2, 4, 2, kVectors>>(args, batch, 1);
  const int small = blocks_for(tiles(32, 32), k, 32, 8), large = blocks_for(tiles(64, 64), k, 64, 4);
  const bool few_rows = args.finish.m <= 32 || args.finish.n <= 32;
  // Larger tiles read less, if they leave no multiprocessors idle.
  if (few_rows || tiles(64, 64) * large < multiprocessors() / 2)
    return prepare<Tile<kAAlongK, kBAlongK, 4, 4, 1, 8, 4, kVectors>>(args, batch, small);
  return prepare<Tile<kAAlongK, kBAlongK, 8, 8, 2, 4, 3, kVectors>>(args, batch, large);
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
  if (!fits || (sums && (p.batch != 1 || !p.transpose_a || p.transpose_b))) return std::nullopt;
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
  const bool vectors = in_fours(p.transpose_a ? p.m : p.k, p.a, p.a_step) &&
                       in_fours(p.transpose_b ? p.k : p.n, p.b, p.b_step) && args.finish.vectors;
  return vectors ? prepare_layout<true>(p, args) : prepare_layout<false>(p, args);
}

}  // namespace trainctl::cuda
