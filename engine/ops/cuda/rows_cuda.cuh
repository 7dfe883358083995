// Kernels that read a row, reduce it, and write a row: norms and softmaxes. A group of threads shares a row and keeps
// it between the passes, in its memory format: in registers if each thread needs at most row_packs() packs, else in
// shared memory; what does not fit there is read again.
//
//   rows    bounded by                            therefore
//   short   bytes in flight: nothing is loaded    a row of up to 4 KB (bf16: 2) is one warp's, without barriers, and
//           while a row is summed and written     registers hold only the row, so that many rows run at once
//   bf16    instructions: some 30 per element in  few instructions; operands that all rows share come from L1
//           the time of a copy
//   long    a second read, which misses L2        shared memory; if it holds one row or two, the next row's packs
//                                                 replace those that were written
//
// A row whose length is not a multiple of a pack can start at any address. Its packs start at the next 16-byte
// boundary; up to V - 1 elements before the packs, and as many after them, are each some thread's `edge`.
//
//   memory  | . . a b | c d e f | g h i j | k . . . |      V = 4: edges a, b and k, head 2, packs 2
#pragma once

#include <climits>

#include "engine/ops/cuda/row_operands_cuda.cuh"

namespace trainctl {

/// Calls use(place, pack of each) for this thread's elements, next(p) after each of packs lane, lane + step, .. < end.
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
/// Another pass: calls use(place, pack of each).
template <int V, class Use, class X, class... More>
__device__ inline void read_row_again(const RowPart<V>& part, Use use, X& x, More&... more) {
  walk_row(
      part, part.packs, use, [](int) {}, x, more...);
}
/// The first pass, over operands whose loads were started.
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
/// The last pass: writes make(place, pack of each) to `out`, which may overwrite an operand.
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

/// Calls start(part, row) and use(part, row, valid, load_next) for the rows of this group. Invalid rows have no
/// elements; they keep all threads of a warp in the loop. use calls load_next() once, when it is done with the part, to
/// start the next row.
template <int V, class Start, class Use>
__device__ inline void over_rows_ahead(const RowGroup& group, const Rows& rows, Start start, Use use) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * group.of_block();
  int64_t first = static_cast<int64_t>(blockIdx.x) * group.of_block();
  const auto row = [&] { return min(first + group.in_block(), rows.count - 1); };
  const auto valid = [&] { return first + group.in_block() < rows.count; };
  const auto part_of_row = [&] {
    RowPart<V> part(rows, group, row());
    if (!valid()) part.packs = 0, part.edge = -1;  // another group may be writing that row
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
/// Calls use(part, row, valid), which starts the row itself.
template <int V, class Use>
__device__ inline void over_rows(const RowGroup& group, const Rows& rows, Use use) {
  over_rows_ahead<V>(
      group, rows, [](const auto&, int64_t) {},
      [&](const RowPart<V>& part, int64_t row, bool valid, auto load_next) {
        use(part, row, valid);
        load_next();
      });
}

// Launchers

/// Threads and shared memory for kernels of rows.
struct RowsLaunch {
  Rows rows;
  unsigned blocks = 1, threads = 128;
  size_t group_bytes = 0;  ///< shared memory of a row

  size_t shared_bytes() const { return group_bytes * (threads / static_cast<unsigned>(rows.group)); }
};

/// The dynamic shared memory that a block of the current device may ask for, less some for kernels' static arrays.
inline int64_t most_shared_bytes() {
  int device = 0, bytes = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
  return bytes - 3 * 1024;
}

/// Calls run(T{}, V, in_registers, how), V the elements of an access as a constant. These are packs of T, the dtype
/// that all of `typed` have. They are single elements, of any dtypes, if dtypes differ (in no job), if the operands'
/// 16-byte boundaries do not coincide, or if a row is hardly longer than its edges. `kept`: number of operands kept
/// between passes; `sides`: of operands [n].
template <class Run>
auto with_rows(Args typed, int64_t count, int64_t n, int kept, Args operands, int sides, Run run) {
  check(n < (int64_t{1} << 30), "CUDA kernels take rows of up to 2^30 elements");
  int64_t before_packs = 0;
  const auto edges_of = [&](int pack) { return before_packs != 0 || n % pack != 0; };
  const auto fit = [&](int pack) {
    before_packs = elements_before_packs(operands, pack);
    return !edges_of(pack) || (before_packs >= 0 && n >= 8 * pack);
  };
  return with_access<true>(typed, fit, [&](auto access) {
    using T = decltype(element_of(access));
    constexpr int V = access.V;
    const bool edges = V > 1 && edges_of(V), in_registers = V > 1 && n / V <= kMaxRowPacks;
    const int64_t packs_of_row = n / V, pack_bytes = sizeof(Raw<T, V>), row_bytes = kept * packs_of_row * pack_bytes;
    const int processors = multiprocessors();

    RowsLaunch how;
    how.rows.count = count;
    how.rows.n = static_cast<int>(n);
    how.rows.before = V > 1 ? static_cast<int>((V - before_packs) % V) : 0;
    // Few rows: as many threads per row as help. Many rows: one warp per row, as long as each thread has a few packs.
    const int64_t of_thread = count < 4 * processors ? 1 : row_packs(V, in_registers, kept);
    // Long rows: as many blocks as run at once; each fetches its next row while it writes the one before.
    const int64_t at_a_time = in_registers || row_bytes == 0 ? 32 : most_shared_bytes() / row_bytes;
    const int most_threads = at_a_time < 2 ? max_long_row_threads(kept + sides) : kMaxRowThreads;
    how.rows.group = edges ? 2 * V : 1;
    while (how.rows.group < most_threads && how.rows.group * of_thread < packs_of_row) how.rows.group *= 2;
    how.threads = static_cast<unsigned>(how.rows.group > 32 ? how.rows.group : 128);
    const int64_t most_blocks = in_registers ? INT_MAX  // scheduled wherever there is room first
                                             : processors * std::clamp<int64_t>(at_a_time > 2 ? 32 : at_a_time, 1, 32);
    const int64_t wanted = ceil_div(count, how.threads / how.rows.group);
    how.blocks = static_cast<unsigned>(std::clamp<int64_t>(wanted, 1, most_blocks));
    if (!in_registers && kept > 0) {
      how.rows.stash_packs = static_cast<int>(std::min(packs_of_row, most_shared_bytes() / (kept * pack_bytes)));
      how.group_bytes = static_cast<size_t>(kept * how.rows.stash_packs * pack_bytes);
    }
    const std::integral_constant<int, V> elements{};
    if constexpr (V > 1) {
      if (in_registers) return run(T{}, elements, std::true_type{}, how);
    }
    return run(T{}, elements, std::false_type{}, how);
  });
}

/// More than 48 KB of shared memory must be requested: as much as the largest of the kernel's calls needs.
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
