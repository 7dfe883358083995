// Kernels that read a row, learn something of the whole of it, and write a row: norms and softmaxes. A group of
// threads shares a row and keeps it between the passes, as memory has it: in registers where each thread needs no more
// than row_packs() packs, else in shared memory, and what does not fit there is read again. What bounds short rows is
// bytes in flight: a row's loads wait for nothing, but nothing is loaded while it is summed and written. So a row of up
// to 4 KB (bf16: 2) is one warp's, which needs no barrier, and registers hold the row alone: of many rows at once. What
// all rows share comes from L1. In bf16 instructions count too: while a copy moves an element, a multiprocessor has
// time for some 30. Of long rows it is a second reading, which L2 does not hold; and where a multiprocessor has room
// for one row or two, in shared memory, the next row comes while one goes: each pack takes the place of one that was
// written.
//
// A row whose length is no multiple of a pack begins anywhere. Its packs begin at the next 16-byte border; the up to
// V - 1 elements before them, and as many behind, go one by one, each by a thread as its `edge`.
//
//   memory  | . . a b | c d e f | g h i j | k . . . |      V = 4: edges a, b and k, head 2, packs 2
#pragma once

#include <climits>

#include "engine/ops/clusters_cuda.cuh"
#include "engine/ops/vector_cuda.cuh"

namespace trainctl {

inline constexpr int kMaxRowThreads = 512;
/// Where rows are so long that one block has a multiprocessor to itself; more operands are more in flight.
inline constexpr int max_long_row_threads(int operands) { return operands > 1 ? kMaxRowThreads : 2 * kMaxRowThreads; }
template <bool kInRegisters, int kOperands>
inline constexpr int kRowThreads = kInRegisters ? kMaxRowThreads : max_long_row_threads(kOperands);
/// Blocks of a multiprocessor, at least, in kernels that keep one operand: rows of bf16 are half as long, so that more
/// warps have to be there.
template <int V, bool kInRegisters>
inline constexpr int kRowBlocks = V == 8 && kInRegisters ? 2 : 1;
/// Packs of an operand that a thread has in flight; where the row is in registers, all that it has of the row.
constexpr int row_packs(int pack, bool in_registers, int operands) {
  return pack == 1 || (in_registers && operands < (pack == 4 ? 2 : 1)) ? 8 : 4;
}
/// Of an operand, in registers.
inline constexpr int kMaxRowPacks = kMaxRowThreads * 4;

/// How rows [count, n] are shared out.
struct Rows {
  int64_t count = 0;
  int n = 0;
  int before = 0;       ///< elements between the 16-byte border before row 0 and that row
  int group = 32;       ///< threads a row: a power of 2 up to 32, or the block
  int stash_packs = 0;  ///< of an operand's row, that shared memory holds
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
  /// In all threads of the group. Every thread of the block takes part.
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
    turn_ ^= 1;  // the other half: nobody still reads it, for all have passed the barrier since
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

/// What one thread has of a row: packs lane, lane + step, .. and perhaps an edge. Places are counted from the row's
/// first element.
template <int V>
struct RowPart {
  int64_t first;  ///< the row's, in the tensor
  int lane, step;
  int head = 0, packs, edge = -1;
  int64_t next_first = 0;  ///< its group's next row: the first pack, in the tensor
  int next_packs = 0;      ///< none: there is no such row

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

/// One operand's row, of kOperands: the packs that this thread has in flight, or all that it has.
template <int V, class T, bool kInRegisters_, int kOperands = 1>
class RowOperand {
 public:
  static constexpr bool kInRegisters = kInRegisters_;
  static constexpr bool kCopies = !kInRegisters && V > 1;  ///< packs come to shared memory in the background
  static constexpr int kPacks = row_packs(V, kInRegisters, kOperands);

  __device__ RowOperand(Ref<T> x, const Rows& rows, const RowGroup& group, int index = 0)
      : x_(x), stash_packs_(rows.stash_packs) {
    extern __shared__ float4 row_stash[];
    if constexpr (!kInRegisters)
      stash_ = reinterpret_cast<Raw<T, V>*>(row_stash) + (group.in_block() * kOperands + index) * stash_packs_;
  }

  /// The first packs of a row, or all that shared memory holds, and its edge.
  __device__ void start(const RowPart<V>& part) {
    row_ = from(x_, part.first);
    if constexpr (V > 1) asm("" : "+l"(row_.p));  // else each pack's address is computed from the tensor's
    if constexpr (kCopies) {
      if (!ahead_) {
        for (int p = part.lane; p < part.packs; p += part.step) copy(part.first + part.head, p);
      }
    } else if constexpr (kInRegisters) {
      // One condition for all: with one each, which their uses share, loads wait for the first uses to end, as there are
      // 7 registers for conditions. What is beyond the row is not used.
      if (part.packs > 0) {
#pragma unroll
        for (int u = 0; u < kPacks; ++u)
          raw_[u] = trainctl::fetch<V>(row_, part.place(min(part.lane + u * part.step, part.packs - 1)));
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
  /// The next row's pack, in the place of this row's, which nobody needs any more.
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
  /// Of a row in registers: the largest number that this thread has, or `least`.
  __device__ float largest(const RowPart<V>& part, float least) const {
    static_assert(kInRegisters);
    float high = part.edge >= 0 ? fmaxf(least, edge(part).v[0]) : least;
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      if (part.lane + u * part.step < part.packs) high = largest_of(raw_[u], high);
    }
    return high;
  }
  /// Of a row in registers: element `place` becomes `by` where this thread has it; what it was, else 0.
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

/// What all rows share, [n], such as gamma: `otherwise` where there is none.
template <class T>
struct RowSide {
  Ref<T> p;
  float otherwise = 0;
  bool packs = false;  ///< its packs are aligned where the rows' are
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
    } else {
#pragma unroll
      for (int j = 0; j < V; ++j) p.v[j] = element(part.place(pack) + j);
    }
    return p;
  }
  __device__ Pack<1> edge(const RowPart<V>& part) const { return {{element(part.edge)}}; }

 private:
  __device__ float element(int place) const { return side_.p.p == nullptr ? side_.otherwise : value(side_.p, place); }

  RowSide<T> side_;
};

/// use(place, pack of each) for this thread's elements, and next(p) behind each of packs lane, lane + step, .. < end.
template <int V, class Use, class Next, class X, class... More>
__device__ inline void walk_row(const RowPart<V>& part, int end, Use use, Next next, X& x, More&... more) {
  for (int from = part.lane; from < end; from += X::kPacks * part.step) {
    if constexpr (!X::kInRegisters) x.recall(part, from), (more.recall(part, from), ...);
#pragma unroll
    for (int u = 0; u < X::kPacks; ++u) {
      const int p = from + u * part.step;
      if (p < part.packs) use(part.place(p), x.pack(part, u, p), more.pack(part, u, p)...);
      next(p);
    }
    if (X::kInRegisters) break;
  }
  if (part.edge >= 0) use(part.edge, x.edge(part), more.edge(part)...);
}
/// One more pass: use(place, pack of each).
template <int V, class Use, class X, class... More>
__device__ inline void read_row_again(const RowPart<V>& part, Use use, X& x, More&... more) {
  walk_row(part, part.packs, use, [](int) {}, x, more...);
}
/// The first pass over operands that were started.
template <int V, class Use, class X, class... More>
__device__ inline void read_row(const RowPart<V>& part, Use use, X& x, More&... more) {
  if constexpr (X::kCopies) {
    x.wait(), (more.wait(), ...);
    read_row_again(part, use, x, more...);
  } else {
    for (int from = part.lane;;) {
#pragma unroll
      for (int u = 0; u < X::kPacks; ++u) {
        const int p = from + u * part.step;
        if (p >= part.packs) continue;
        use(part.place(p), x.pack(part, u, p), more.pack(part, u, p)...);
        if constexpr (!X::kInRegisters) x.keep(u, p), (more.keep(u, p), ...);
      }
      from += X::kPacks * part.step;
      if (X::kInRegisters || from >= part.packs) break;
      x.fetch(part, from), (more.fetch(part, from), ...);
    }
    if (part.edge >= 0) use(part.edge, x.edge(part), more.edge(part)...);
  }
}
/// The last pass: `out` gets make(place, pack of each). It may lie on an operand.
template <int V, class T, class Make, class X, class... More>
__device__ inline void write_row(const RowPart<V>& part, bool valid, Ref<T> out, Make make, X& x, More&... more) {
  if (!valid) return;
  const Ref<T> row = from(out, part.first);
  const auto write = [&]<int W>(int place, const Pack<W>& first, const auto&... others) {
    store(row, place, make(place, first, others...).v);
  };
  if constexpr (X::kCopies) {
    walk_row(
        part, max(part.packs, part.next_packs), write,
        [&](int p) { x.copy_next(part, p), (more.copy_next(part, p), ...); }, x, more...);
  } else {
    read_row_again(part, write, x, more...);
  }
}

/// start(part, row) and use(part, row, valid, go_on) for the rows of this group; invalid ones are there so that all
/// threads of a warp go along, and have no elements. go_on() starts the next row: once, where the part is no more needed.
template <int V, class Start, class Use>
__device__ inline void over_rows_ahead(const RowGroup& group, const Rows& rows, Start start, Use use) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * group.of_block();
  int64_t first = static_cast<int64_t>(blockIdx.x) * group.of_block();
  const auto row = [&] { return min(first + group.in_block(), rows.count - 1); };
  const auto valid = [&] { return first + group.in_block() < rows.count; };
  const auto part_of_row = [&] {
    RowPart<V> part(rows, group, row());
    if (!valid()) part.packs = 0, part.edge = -1;  // another group may write that row meanwhile
    part.look_ahead(rows, first + group.in_block() + step);
    return part;
  };
  if (first >= rows.count) return;
  RowPart<V> part = part_of_row();
  start(part, row());
  while (first < rows.count) {
    use(part, row(), valid(), [&] {
      first += step;
      if (first >= rows.count) return;
      part = part_of_row();
      start(part, row());
    });
  }
}
/// use(part, row, valid), which starts the row itself.
template <int V, class Use>
__device__ inline void over_rows(const RowGroup& group, const Rows& rows, Use use) {
  over_rows_ahead<V>(
      group, rows, [](const auto&, int64_t) {},
      [&](const RowPart<V>& part, int64_t row, bool valid, auto go_on) {
        use(part, row, valid);
        go_on();
      });
}

// Launchers

/// Threads and shared memory for rows of which `kept` operands are kept.
struct RowsLaunch {
  Rows rows;
  unsigned blocks = 1, threads = 128;
  size_t group_bytes = 0;  ///< shared memory of a row

  size_t shared_bytes() const { return group_bytes * (threads / static_cast<unsigned>(rows.group)); }
};

/// Of the current device, that a block may ask for; a few bytes less, which kernels declare themselves.
inline int64_t most_shared_bytes() {
  int device = 0, bytes = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
  return bytes - 3 * 1024;
}

/// Calls run(V, in_registers, how) with the pack of T as a constant, or 1 where 16-byte borders of the operands do not
/// lie together, where dtypes differ, which no job has, or where a row is hardly longer than its edges. `sides`: so
/// many operands are [n].
template <class T, class Run>
auto with_rows(int64_t count, int64_t n, int kept, Args operands, int sides, Run run) {
  check(n < (int64_t{1} << 30), "CUDA kernels take rows of up to 2^30 elements");
  constexpr int V = std::is_same_v<T, Mixed> ? 1 : kPack<T>;
  const int64_t before_packs = elements_before_packs(operands, V);
  const bool edges = before_packs != 0 || n % V != 0;
  const bool packs = V > 1 && (!edges || (before_packs >= 0 && n >= 8 * V));
  const int64_t packs_of_row = packs ? n / V : n;
  const bool in_registers = packs && packs_of_row <= kMaxRowPacks;
  const int64_t pack_bytes = packs ? sizeof(Raw<T, V>) : sizeof(Raw<T, 1>);
  const int64_t row_bytes = kept * packs_of_row * pack_bytes;
  const int processors = multiprocessors();

  RowsLaunch how;
  how.rows.count = count;
  how.rows.n = static_cast<int>(n);
  how.rows.before = packs ? static_cast<int>((V - before_packs) % V) : 0;
  // Few rows: as many threads as help a single one. Many: a warp a row, while each thread has a few packs.
  const int64_t of_thread = count < 4 * processors ? 1 : row_packs(packs ? V : 1, in_registers, kept);
  // Long rows: so many blocks as run at once, each of which fetches its next row while the one before is written.
  const int64_t at_a_time = in_registers || row_bytes == 0 ? 32 : most_shared_bytes() / row_bytes;
  const int most_threads = at_a_time < 2 ? max_long_row_threads(kept + sides) : kMaxRowThreads;
  how.rows.group = packs && edges ? 2 * V : 1;
  while (how.rows.group < most_threads && how.rows.group * of_thread < packs_of_row) how.rows.group *= 2;
  how.threads = static_cast<unsigned>(how.rows.group > 32 ? how.rows.group : 128);
  const int64_t most_blocks = in_registers ? INT_MAX  // the card finds each the first free room
                                           : processors * std::clamp<int64_t>(at_a_time > 2 ? 32 : at_a_time, 1, 32);
  const int64_t wanted = ceil_div(count, how.threads / how.rows.group);
  how.blocks = static_cast<unsigned>(std::clamp<int64_t>(wanted, 1, most_blocks));
  if (!in_registers && kept > 0) {
    how.rows.stash_packs = static_cast<int>(std::min(packs_of_row, most_shared_bytes() / (kept * pack_bytes)));
    how.group_bytes = static_cast<size_t>(kept * how.rows.stash_packs * pack_bytes);
  }
  if constexpr (V > 1) {
    if (in_registers) return run(std::integral_constant<int, V>{}, std::true_type{}, how);
    if (packs) return run(std::integral_constant<int, V>{}, std::false_type{}, how);
  }
  return run(std::integral_constant<int, 1>{}, std::false_type{}, how);
}

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
  ask_for_shared(kernel, how.shared_bytes(), name);
  if (how.rows.count == 0 || how.rows.n == 0) return [](CudaStream) {};
  return [=](CudaStream stream) {
    launch(kernel, how.blocks, how.threads, how.shared_bytes(), stream, name, arguments...);
  };
}

}  // namespace trainctl
