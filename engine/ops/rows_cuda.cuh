// Kernels that read a row, learn something of the whole of it, and write a row: norms and softmaxes. A group of
// threads shares a row, which it keeps in shared memory between the passes, where it fits.
#pragma once

#include "engine/ops/vector_cuda.cuh"

namespace trainctl {

inline constexpr int kMaxRowThreads = 512;

/// How rows [count, n] are shared out.
struct Rows {
  int64_t count = 0, n = 0;
  int packs = 0;         ///< of a row
  int group = 32;        ///< threads a row: a power of 2 up to 32, or the block
  int stash_floats = 0;  ///< shared memory of a group; 0: rows are read again
};

/// The threads of one row.
class RowGroup {
 public:
  __device__ explicit RowGroup(int size) : size_(size) {}
  __device__ int lane() const { return static_cast<int>(threadIdx.x) % size_; }
  __device__ int size() const { return size_; }
  __device__ int in_block() const { return static_cast<int>(threadIdx.x) / size_; }
  __device__ int of_block() const { return static_cast<int>(blockDim.x) / size_; }

  __device__ float sum(float v) {
    return reduce(v, [](float a, float b) { return a + b; });
  }
  __device__ float max(float v) {
    return reduce(v, [](float a, float b) { return fmaxf(a, b); });
  }

 private:
  /// In all threads of the group. Every thread of the block takes part.
  template <class Op>
  __device__ float reduce(float v, Op op) {
    for (int away = min(size_, 32) / 2; away > 0; away /= 2) v = op(v, __shfl_xor_sync(~0u, v, away));
    if (size_ <= 32) return v;
    __shared__ float of_warp[2][32];
    turn_ ^= 1;  // the other half: nobody still reads it, for all have passed
                 // the barrier since
    if (threadIdx.x % 32 == 0) of_warp[turn_][threadIdx.x / 32] = v;
    __syncthreads();
    v = of_warp[turn_][threadIdx.x % (size_ / 32)];
    for (int away = size_ / 64; away > 0; away /= 2) v = op(v, __shfl_xor_sync(~0u, v, away));
    return v;
  }

  int size_;
  int turn_ = 0;
};

/// A group's shared memory: one row of f32. Each thread reads only what it wrote itself.
class Stash {
 public:
  __device__ Stash(const Rows& rows, const RowGroup& group, int index, int of) : packs_(rows.packs) {
    extern __shared__ float4 row_stash[];
    float* const memory = reinterpret_cast<float*>(row_stash);
    if (rows.stash_floats > 0) row_ = memory + (group.in_block() * of + index) * rows.stash_floats;
  }
  __device__ explicit operator bool() const { return row_ != nullptr; }

  template <int V>
  __device__ void put(int pack, const float (&v)[V]) {
    if constexpr (V == 1) {
      row_[pack] = v[0];
    } else {
      for (int i = 0; i < V / 4; ++i) {  // quarters of packs apart, so that a
                                         // warp's accesses lie side by side
        reinterpret_cast<float4*>(row_)[i * packs_ + pack] =
            make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
      }
    }
  }
  template <int V>
  __device__ void get(int pack, float (&v)[V]) const {
    if constexpr (V == 1) {
      v[0] = row_[pack];
    } else {
      for (int i = 0; i < V / 4; ++i) {
        const float4 q = reinterpret_cast<const float4*>(row_)[i * packs_ + pack];
        v[4 * i] = q.x, v[4 * i + 1] = q.y, v[4 * i + 2] = q.z, v[4 * i + 3] = q.w;
      }
    }
  }

 private:
  float* row_ = nullptr;
  int packs_;
};

/// One row of an operand, kept when it is read first.
template <int V, class T>
class StashedRow {
 public:
  __device__ StashedRow(Ref<T> x, int64_t at, Stash stash) : x_(x), at_(at), stash_(stash) {}
  __device__ Raw<T, V> first(int pack) const { return fetch<V>(x_, at_ + static_cast<int64_t>(pack) * V); }
  __device__ void keep(int pack, const float (&v)[V]) {
    if (stash_) stash_.put(pack, v);
  }
  __device__ void load_again(int pack, float (&v)[V]) const {
    if (stash_) return stash_.get(pack, v);
    unpack(first(pack), v);
  }

 private:
  Ref<T> x_;
  int64_t at_;
  Stash stash_;
};

/// use(pack) for this thread's packs of a row.
template <class Use>
__device__ inline void over_packs(const RowGroup& group, const Rows& rows, Use use) {
  for (int p = group.lane(); p < rows.packs; p += group.size()) use(p);
}
/// The first reading of one or more operands: several packs of each are in flight. fetch(pack) and then use(pack,
/// fetched).
template <int kInFlight, class Fetch, class Use>
__device__ inline void read_packs(const RowGroup& group, const Rows& rows, Fetch fetch_pack, Use use) {
  for (int p = group.lane(); p < rows.packs; p += kInFlight * group.size()) {
    decltype(fetch_pack(0)) raw[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) raw[u] = fetch_pack(min(p + u * group.size(), rows.packs - 1));
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (p + u * group.size() < rows.packs) use(p + u * group.size(), raw[u]);
    }
  }
}
/// Two operands' packs.
template <class A, class B>
struct RawPair {
  A a;
  B b;
};
/// use(row, valid) for the rows of this group; invalid ones are there so that all threads of a warp go along.
template <class Use>
__device__ inline void over_rows(const RowGroup& group, const Rows& rows, Use use) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * group.of_block();
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * group.of_block(); first < rows.count; first += step) {
    const int64_t row = first + group.in_block();
    use(row < rows.count ? row : rows.count - 1, row < rows.count);
  }
}

/// Sum of e^(x - top) over packs as they come, top the largest so far (Milakov and Gimelshein 2018).
struct Exponentials {
  float top = -3.402823466e38f;  // finite: -inf - -inf is no number
  float sum = 0;

  /// counts(j): whether element j is part of the sum; all are of the maximum. x - top is not positive, so that the
  /// error of the fast exponential stays under 1e-6 of the largest.
  template <int V, class Counts>
  __device__ void add(const float (&v)[V], Counts counts) {
    float high = top;
#pragma unroll
    for (int j = 0; j < V; ++j) high = fmaxf(high, v[j]);
    if (high > top) {
      sum *= __expf(top - high);
      top = high;
    }
#pragma unroll
    for (int j = 0; j < V; ++j) sum += counts(j) ? __expf(v[j] - top) : 0.0f;
  }
  __device__ void combine(RowGroup& group) {
    const float mine = top;
    top = group.max(top);
    sum = group.sum(sum * __expf(mine - top));
  }
};

// Launchers

/// Threads and shared memory for rows of which `stashes` operands are kept.
struct RowsLaunch {
  Rows rows;
  unsigned blocks = 1, threads = 128;
  size_t shared_bytes = 0;

  RowsLaunch(int64_t count, int64_t n, int pack, int stashes) {
    check(n / pack < (int64_t{1} << 31), "CUDA kernels take rows of up to 2^31 elements");
    rows.count = count;
    rows.n = n;
    rows.packs = static_cast<int>(n / pack);
    const int processors = multiprocessors();
    // Few rows: as many threads as help a single one. Many: a warp a row, while each thread has a few packs.
    const int packs_of_thread = count < 4 * processors ? 1 : rows.packs <= 256 ? 8 : 4;
    for (rows.group = 1; rows.group < kMaxRowThreads && rows.group * packs_of_thread < rows.packs;) rows.group *= 2;
    threads = static_cast<unsigned>(rows.group > 32 ? rows.group : 128);
    const int64_t of_block = threads / rows.group;
    blocks = static_cast<unsigned>(std::clamp<int64_t>(ceil_div(count, of_block), 1, processors * int64_t{32}));
    const int64_t floats = (n + 3) / 4 * 4;
    const auto bytes = static_cast<size_t>(of_block * stashes * floats) * sizeof(float);
    if (stashes == 0 || bytes > 110 * 1024) return;  // two blocks share a processor's 227 KB
    rows.stash_floats = static_cast<int>(floats);
    shared_bytes = bytes;
  }
};

/// More than 48 KB of shared memory has to be asked for: what the largest of the kernel's calls needs.
template <class... Parameters>
void ask_for_shared(void (*kernel)(Parameters...), size_t bytes, const char* name) {
  if (bytes <= 48 * 1024) return;
  cudaFuncAttributes now{};
  cuda_check(cudaFuncGetAttributes(&now, kernel), name);
  if (static_cast<size_t>(now.maxDynamicSharedSizeBytes) >= bytes) return;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), name);
}

template <class... Parameters, class... Arguments>
CudaKernel launch_rows(void (*kernel)(Parameters...), const RowsLaunch& how, const char* name,
                       const Arguments&... arguments) {
  ask_for_shared(kernel, how.shared_bytes, name);
  if (how.rows.count == 0 || how.rows.n == 0) return [](CudaStream) {};
  return
      [=](CudaStream stream) { launch(kernel, how.blocks, how.threads, how.shared_bytes, stream, name, arguments...); };
}

/// Calls run(pack) with the pack of T as a constant, or 1 where rows do not start on 16-byte borders.
template <class T, class Run>
auto with_row_pack(int64_t n, Args operands, Run run) {
  if (n % kPack<T> == 0 && packs_are_aligned(operands)) return run(std::integral_constant<int, kPack<T>>{});
  return run(std::integral_constant<int, 1>{});
}

}  // namespace trainctl
