// Row handling of row kernels (rows_cuda.cuh): the threads of a row, their parts of it, and the operands that they
// keep.
#pragma once

#include "engine/ops/cuda/vector_cuda.cuh"
#include "engine/ops/small_step/clusters_cuda.cuh"

namespace trainctl {

inline constexpr int kMaxRowThreads = 512;
/// For rows so long that one block takes a whole multiprocessor. More operands mean more bytes in flight.
inline constexpr int max_long_row_threads(int operands) { return operands > 1 ? kMaxRowThreads : 2 * kMaxRowThreads; }
template <bool kInRegisters, int kOperands>
inline constexpr int kRowThreads = kInRegisters ? kMaxRowThreads : max_long_row_threads(kOperands);
/// Minimum number of blocks per multiprocessor in kernels that keep one operand: rows of bf16 have half the bytes, so
/// they need more warps.
template <int V, bool kInRegisters>
inline constexpr int kRowBlocks = V == 8 && kInRegisters ? 2 : 1;
/// Packs of an operand that a thread has in flight; if the row is in registers, all its packs of the row.
constexpr int row_packs(int pack, bool in_registers, int operands) {
  return pack == 1 || (in_registers && operands < (pack == 4 ? 2 : 1)) ? 8 : 4;
}
/// The most packs of an operand's row that registers hold.
inline constexpr int kMaxRowPacks = kMaxRowThreads * 4;

/// The distribution of rows [count, n] over threads.
struct Rows {
  int64_t count = 0;
  int n = 0;
  int before = 0;       ///< elements from the last 16-byte boundary at or before row 0 to row 0
  int group = 32;       ///< threads per row: a power of 2 up to 32, or the block
  int stash_packs = 0;  ///< packs of an operand's row that shared memory holds
};

/// The threads of one row.
class RowGroup {
 public:
  __device__ explicit RowGroup(int size)
      : size_(size),
        lane_(static_cast<int>(threadIdx.x) & (size - 1)),
        in_block_(static_cast<int>(threadIdx.x) / size) {}
  __device__ int lane() const { return lane_; }
  __device__ int size() const { return size_; }
  __device__ int in_block() const { return in_block_; }
  __device__ int of_block() const { return static_cast<int>(blockDim.x) / size_; }

  __device__ float sum(float v) {
    float one[1] = {v};
    sum(one);
    return one[0];
  }
  template <int N>
  __device__ void sum(float (&v)[N]) {
    reduce(v, [](float a, float b) { return a + b; });
  }
  __device__ float max(float v) {
    float one[1] = {v};
    reduce(one, [](float a, float b) { return fmaxf(a, b); });
    return one[0];
  }

 private:
  /// All threads of the group get the result. Every thread of the block takes part.
  template <int N, class Op>
  __device__ void reduce(float (&v)[N], Op op) {
    const auto over_lanes = [&](int lanes) {
#pragma unroll
      for (int away = 16; away > 0; away /= 2) {
        if (away >= lanes) continue;
#pragma unroll
        for (int k = 0; k < N; ++k) v[k] = op(v[k], __shfl_xor_sync(~0u, v[k], away));
      }
    };
    over_lanes(min(size_, 32));
    if (size_ <= 32) return;
    __shared__ float of_warp[2][N][32];
    turn_ ^= 1;  // the other half: all threads have passed a barrier since it was read
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (threadIdx.x % 32 == 0) of_warp[turn_][k][threadIdx.x / 32] = v[k];
    }
    __syncthreads();
    const int warps = size_ / 32;
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = of_warp[turn_][k][static_cast<int>(threadIdx.x) & (warps - 1)];
    over_lanes(warps);
  }

  int size_, lane_, in_block_;
  int turn_ = 0;
};

/// One thread's part of a row: packs lane, lane + step, .. and at most one edge element. Places are indices in the row.
template <int V>
struct RowPart {
  int64_t first;  ///< index of the row's first element in the tensor
  int lane, step;
  int head = 0, packs, edge = -1;
  int64_t next_first = 0;  ///< index in the tensor of the first pack of the group's next row
  int next_packs = 0;      ///< packs of that row; 0: there is none

  __device__ RowPart(const Rows& rows, const RowGroup& group, int64_t row)
      : first(row * rows.n), lane(group.lane()), step(group.size()), packs(rows.n) {
    if constexpr (V == 1) return;
    head = head_of(rows, first);
    packs = (rows.n - head) / V;
    const int tail = (rows.n - head) % V;
    if (lane < head) edge = lane;
    if (lane >= head && lane < head + tail) edge = packs * V + lane;
  }
  __device__ void look_ahead(const Rows& rows, int64_t next) {
    if (next >= rows.count) return;
    const int next_head = head_of(rows, next * rows.n);
    next_first = next * rows.n + next_head;
    next_packs = (rows.n - next_head) / V;
  }
  __device__ static int head_of(const Rows& rows, int64_t first) {
    return -(rows.before + static_cast<int>(first)) & (V - 1);
  }
  __device__ int place(int pack) const { return head + pack * V; }
};

template <int W>
struct Pack {
  float v[W];
};

/// The row of one of kOperands operands: the packs that this thread has in flight, or all its packs.
template <int V, class T, bool kInRegisters_, int kOperands = 1>
class RowOperand {
 public:
  static constexpr bool kInRegisters = kInRegisters_;
  static constexpr bool kCopies = !kInRegisters && V > 1;  ///< packs are copied to shared memory asynchronously
  static constexpr int kPacks = row_packs(V, kInRegisters, kOperands);

  __device__ RowOperand(Ref<T> x, const Rows& rows, const RowGroup& group, int index = 0)
      : x_(x), stash_packs_(rows.stash_packs) {
    extern __shared__ float4 row_stash[];
    if constexpr (!kInRegisters)
      stash_ = reinterpret_cast<Raw<T, V>*>(row_stash) + (group.in_block() * kOperands + index) * stash_packs_;
  }

  /// Starts to load the first packs of a row, or all that shared memory holds, and its edge.
  __device__ void start(const RowPart<V>& part) {
    row_ = from(x_, part.first);
    if constexpr (V > 1) asm("" : "+l"(row_.p));  // else each pack's address is computed from the tensor's
    if constexpr (kCopies) {
      if (!ahead_) {
        for (int p = part.lane; p < part.packs; p += part.step) copy(part.first + part.head, p);
      }
    } else if constexpr (kInRegisters) {
      // One condition for all packs: with one each, later loads would wait for the first uses, as there are only 7
      // predicate registers. Past the row's end its own last pack is read again: other rows may be written meanwhile.
      if (part.lane < part.packs) {
        const int last = part.lane + ((part.packs - 1 - part.lane) & -part.step);
#pragma unroll
        for (int u = 0; u < kPacks; ++u)
          raw_[u] = trainctl::fetch<V>(row_, part.place(min(part.lane + u * part.step, last)));
      }
    } else {
      fetch(part, part.lane);
    }
    if (part.edge >= 0) edge_ = trainctl::fetch<1>(row_, part.edge);
  }
  __device__ void wait() {
    if constexpr (kCopies) {
      cuda::commit_copies();
      cuda::wait_for_copies<0>();
    }
  }
  __device__ void fetch(const RowPart<V>& part, int from) {
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      const int p = from + u * part.step;
      if (p < part.packs) raw_[u] = trainctl::fetch<V>(row_, part.place(p));
    }
  }
  __device__ void keep(int u, int pack) {
    if (pack < stash_packs_) stash_[pack] = raw_[u];  // each thread reads only what it wrote itself
  }
  __device__ void recall(const RowPart<V>& part, int from) {
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      const int p = from + u * part.step;
      if (p >= part.packs) continue;
      if (p < stash_packs_) {
        raw_[u] = stash_[p];
      } else {
        raw_[u] = trainctl::fetch<V>(row_, part.place(p));
      }
    }
  }
  /// Copies the next row's pack over this row's pack, which is no longer needed.
  __device__ void copy_next(const RowPart<V>& part, int pack) {
    if (pack < part.next_packs) copy(part.next_first, pack);
    ahead_ = true;
  }
  __device__ Pack<V> pack(const RowPart<V>&, int u, int) const {
    Pack<V> p;
    unpack(raw_[u], p.v);
    return p;
  }
  __device__ Pack<1> edge(const RowPart<V>&) const {
    Pack<1> p;
    unpack(edge_, p.v);
    return p;
  }
  /// For a row in registers: the largest of this thread's elements and `least`.
  __device__ float largest(const RowPart<V>& part, float least) const {
    static_assert(kInRegisters);
    float high = part.edge >= 0 ? fmaxf(least, edge(part).v[0]) : least;
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      if (part.lane + u * part.step < part.packs) high = largest_of(raw_[u], high);
    }
    return high;
  }
  /// For a row in registers: if this thread has element `place`, sets it to `by` and returns its old value, else 0.
  __device__ float exchange(const RowPart<V>& part, int place, float by) {
    static_assert(kInRegisters);
    float was = 0;
    const int from_mine = place - part.place(part.lane);
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      const int j = from_mine - u * part.step * V;
      if (static_cast<unsigned>(j) < V && part.lane + u * part.step < part.packs) was = exchange_in(raw_[u], j, by);
    }
    if (place == part.edge) {
      was = edge(part).v[0];
      edge_ = raw_of<T>(by);
    }
    return was;
  }

 private:
  __device__ void copy(int64_t first_pack, int pack) {
    if (pack >= stash_packs_) return;
    cuda::copy_async<16>(reinterpret_cast<float*>(stash_ + pack),
                         reinterpret_cast<const float*>(from(x_, first_pack + int64_t{pack} * V).p), true);
  }

  Ref<T> x_, row_;
  Raw<T, V> raw_[kPacks];
  Raw<T, 1> edge_;
  int stash_packs_;
  bool ahead_ = false;  ///< the row was copied while the one before was written
  Raw<T, V>* stash_ = nullptr;
};

/// An operand [n] that all rows share, such as gamma, plus `base`; `base` alone if it is absent.
template <class T>
struct RowSide {
  Ref<T> p;
  float base = 0;
  bool packs = false;  ///< its packs are aligned like the rows'
};
template <int V, class T>
class RowSideOperand {
 public:
  __device__ explicit RowSideOperand(const RowSide<T>& side) : side_(side) {}
  __device__ void fetch(const RowPart<V>&, int) {}
  __device__ void keep(int, int) {}
  __device__ void recall(const RowPart<V>&, int) {}
  __device__ void wait() {}
  __device__ void copy_next(const RowPart<V>&, int) {}
  __device__ Pack<V> pack(const RowPart<V>& part, int, int pack) const {
    Pack<V> p;
    if (V > 1 && side_.packs) {
      load(side_.p, part.place(pack), p.v);
#pragma unroll
      for (int j = 0; j < V; ++j) p.v[j] += side_.base;
    } else {
#pragma unroll
      for (int j = 0; j < V; ++j) p.v[j] = element(part.place(pack) + j);
    }
    return p;
  }
  __device__ Pack<1> edge(const RowPart<V>& part) const { return {{element(part.edge)}}; }

 private:
  __device__ float element(int place) const {
    return side_.p.p == nullptr ? side_.base : side_.base + value(side_.p, place);
  }

  RowSide<T> side_;
};

}  // namespace trainctl
