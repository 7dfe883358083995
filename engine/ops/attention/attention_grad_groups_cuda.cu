// The gradient of attention by the tensor cores of Hopper, for bf16 and heads of 64 features, if there are fewer than
// 4,096 keys (more keys take less time in one pass: attention_grad_one_pass_cuda.h). Both kernels compute the
// scores again, from q, k and the rows' logs, so that every sum is kept in registers and added in a fixed order: seven
// products of tiles in place of five, and no atomics.
//
//   rows_kernel      of each query: log, in powers of two, and mean = sum dy * out
//   keys_kernel      a block for 64 keys of a kv head: dk and dv, over the tiles of 64 queries that see them
//   queries_kernel   a block for 64 queries of a head: dq, over the tiles of 64 keys that they see
//
// A block is one group of four warps; several run on a multiprocessor, so that one's exponentials are computed during
// another's products. The blocks of a head run at about the same time: each reads all of the head's tiles, which only
// stay in the L2 cache meanwhile. The copy engine loads kPlaces tiles ahead. With p = e^(score - log) and
// g = p (dy v' - mean):
//
//   keys_kernel      p' = k q',  g' from v dy',  dv += p' dy,  dk += g' q
//   queries_kernel   p = q k',   g from dy v',   dq += g k
#include "engine/ops/attention/attention_grad_groups_cuda.h"
#include "engine/ops/attention/head_copies_cuda.cuh"
#include "engine/ops/small_step/tile_copies_cuda.cuh"
#include "engine/ops/softmax/exponentials_cuda.cuh"

namespace trainctl {
namespace {

using namespace attention;
using namespace cuda;

constexpr int kFeatures = 64;
constexpr int kRowsBytes = 2 * kSquare * sizeof(float);

/// The operands that both kernels read and write.
struct Gradient {
  CUtensorMap q, k, v, dy;  ///< [b, g, r, rows, 64]
  int b, t, s, g, r;
  int first_row;
  bool causal;
  float scale;
  const float* rows;  ///< [b, g, r, tiles of t, 2, 64]: logs, then means; beyond t: infinite, then 0
  bf16 *dq, *dk, *dv;
  Heads to_q, to_k, to_v;

  /// Returns whether 64 rows see all of 64 keys.
  __device__ bool see_all(int row0, int key0) const {
    return key0 + kSquare <= s && (!causal || key0 + kSquare - 1 <= first_row + row0);
  }
  /// The logs of 64 rows, and kSquare places later their means.
  __device__ const float* rows_of(int b_, int g_, int r_, int row0) const {
    return rows + 2 * (((static_cast<int64_t>(b_) * g + g_) * r + r_) * tiles(t) * kSquare + row0);
  }
  __host__ __device__ static int64_t tiles(int64_t rows) { return (rows + kSquare - 1) / kSquare; }
};

/// The head and tile of a block. Blocks take a few heads at a time, with their tiles of equal index side by side, so
/// that the longest tiles of a causal mask come first.
struct Turn {
  int head, tile;

  __device__ Turn(int heads, int tiles) {
    constexpr int kHeads = 8;
    const int first = static_cast<int>(blockIdx.x) / (kHeads * tiles) * kHeads, count = min(kHeads, heads - first);
    const int at = static_cast<int>(blockIdx.x) - first * tiles;
    head = first + at % count;
    tile = at / count;
  }
};

/// Two tiles of the block's own, and pairs of others that pass through kPlaces places.
template <int kPlaces>
struct alignas(1024) Shared {
  unsigned char own[2][kSquareBytes];
  unsigned char passing[kPlaces][2][kSquareBytes];
  float rows[kPlaces][2][kSquare];  ///< logs and means of the queries that pass
  alignas(8) float own_here[2], here[kPlaces][2];

  __device__ static Shared& get() {
    extern __shared__ unsigned char bytes[];
    const unsigned past = shared_address(bytes) % 1024;
    return *reinterpret_cast<Shared*>(bytes + (past == 0 ? 0 : 1024 - past));
  }
  static constexpr size_t bytes() { return sizeof(Shared) + 1024; }

  /// Called by the whole block, before the first copy.
  __device__ void prepare() {
    if (threadIdx.x == 0) {
      prepare_announcements(own_here);
      for (int i = 0; i < kPlaces; ++i) prepare_announcements(here[i]);
      publish_to_copies();
    }
    __syncthreads();
  }
};
constexpr int kKeysPlaces = 3, kQueriesPlaces = 2, kKeysBlocks = 3, kQueriesBlocks = 4;  // on a multiprocessor
using KeysShared = Shared<kKeysPlaces>;
using QueriesShared = Shared<kQueriesPlaces>;

__device__ uint64_t tile_at(const unsigned char* tile) { return square_at(shared_address(tile)); }

/// This thread's place in the sums.
struct Lane {
  int row = static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  int column = 2 * (static_cast<int>(threadIdx.x) % 4);
};

/// Rounded sums, times `scale`; rows beyond `rows` are not written.
__device__ void write_sums(const float (&d)[32], float scale, const Lane& lane, bf16* to, int64_t step, int rows) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (lane.row + 8 * h >= rows) continue;
    bf16* const line = to + (lane.row + 8 * h) * step + lane.column;
#pragma unroll
    for (int j = 0; j < 8; ++j)
      *reinterpret_cast<unsigned*>(line + 8 * j) = pair_of(scale * d[4 * j + 2 * h], scale * d[4 * j + 2 * h + 1]);
  }
}

__device__ void clear(float (&d)[32]) {
#pragma unroll
  for (float& v : d) v = 0;
}

constexpr int kNever = -(1 << 30), kAlways = 1 << 30;

/// Each warp signals that it no longer reads the tile before the block's i-th; only the first waits for all signals
/// so, and may then load another in its place. No warp is two tiles ahead, so two barriers in turn suffice.
__device__ void leave_tile(int i) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  if (threadIdx.x < 32) {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + i % 2), "n"(kGroupThreads) : "memory");
  } else {
    asm volatile("bar.arrive %0, %1;" ::"r"(1 + i % 2), "n"(kGroupThreads) : "memory");
  }
#endif
}

/// The query tiles of all query heads of the group that see a block's keys, one after another.
struct QueryTiles {
  const Gradient& x;
  KeysShared& shared;
  int b, g, first, each;
  int r = 0, tile = 0, place = 0;  ///< position of the next copy

  __device__ QueryTiles(const Gradient& of, KeysShared& memory, int b_, int g_, int key0)
      : x(of), shared(memory), b(b_), g(g_), first((x.causal ? max(0, key0 - x.first_row) : 0) / kSquare) {
    each = max(0, static_cast<int>(Gradient::tiles(x.t)) - first);
  }
  __device__ int all() const { return each * x.r; }
  /// Called by one thread.
  __device__ void copy_next() {
    if (r == x.r || each == 0) return;
    const int row = (first + tile) * kSquare;
    float* const here = shared.here[place];
    announce_bytes(here, 2 * kSquareBytes + kRowsBytes);
    copy_box(shared.passing[place][0], x.q, 0, row, r, g, b, here);
    copy_box(shared.passing[place][1], x.dy, 0, row, r, g, b, here);
    copy_bytes<kRowsBytes>(shared.rows[place][0], x.rows_of(b, g, r, row), here);
    if (++tile == each) tile = 0, ++r;
    if (++place == kKeysPlaces) place = 0;
  }
};

/// p' of 64 keys and 64 queries from their scores.
__device__ void weigh_queries(const Gradient& x, const float* logs, const Lane& lane, int row0, int key0,
                              float (&p)[32]) {
  const float unit = x.scale * kLog2e;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 two = *reinterpret_cast<const float2*>(logs + 8 * j + lane.column);
#pragma unroll
    for (int e = 0; e < 4; ++e) p[4 * j + e] = power_of_two(fmaf(p[4 * j + e], unit, e % 2 == 0 ? -two.x : -two.y));
  }
  if (x.see_all(row0, key0)) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int key = key0 + lane.row + 8 * h;
    const int least = key >= x.s ? kAlways : x.causal ? key - x.first_row - row0 - lane.column : kNever;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float& v = p[4 * (i / 2) + 2 * h + i % 2];
      v = 8 * (i / 2) + i % 2 >= least ? v : 0;
    }
  }
}

__device__ void slope_queries(const float* means, const Lane& lane, const float (&p)[32], float (&g)[32]) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 two = *reinterpret_cast<const float2*>(means + 8 * j + lane.column);
#pragma unroll
    for (int e = 0; e < 4; ++e) g[4 * j + e] = p[4 * j + e] * (g[4 * j + e] - (e % 2 == 0 ? two.x : two.y));
  }
}

__global__ void __launch_bounds__(kGroupThreads, kKeysBlocks) keys_kernel(const __grid_constant__ Gradient x) {
  wait_for_kernel_before();
  let_next_kernel_start();
  KeysShared& shared = KeysShared::get();
  shared.prepare();
  const Turn turn(x.b * x.g, static_cast<int>(Gradient::tiles(x.s)));
  const int b = turn.head / x.g, g = turn.head % x.g, key0 = turn.tile * kSquare;
  QueryTiles tiles(x, shared, b, g, key0);
  if (threadIdx.x == 0) {
    announce_bytes(shared.own_here, 2 * kSquareBytes);
    copy_box(shared.own[0], x.k, 0, key0, 0, g, b, shared.own_here);
    copy_box(shared.own[1], x.v, 0, key0, 0, g, b, shared.own_here);
    for (int i = 0; i < kKeysPlaces; ++i) tiles.copy_next();
  }
  const Lane lane;
  const uint64_t keys = tile_at(shared.own[0]), values = tile_at(shared.own[1]);
  float dk[32], dv[32];
  clear(dk);
  clear(dv);
  wait_for_bytes(shared.own_here, 0);
  const int all = tiles.all(), row_of_first = tiles.first * kSquare;
  for (int i = 0, place = 0, round = 0, row0 = row_of_first; i < all; ++i) {
    const uint64_t queries = tile_at(shared.passing[place][0]), dys = tile_at(shared.passing[place][1]);
    float p[32], slope[32];
    unsigned pairs[16], g_pairs[16];
    wait_for_bytes(shared.here[place], round);
    begin_products();
    multiply_lines(p, keys, queries);
    end_products();
    multiply_lines(slope, values, dys);
    end_products();
    products_done<1>();
    settle(p);
    if (i > 0) {
      leave_tile(i);
      if (threadIdx.x == 0) tiles.copy_next();
    }
    weigh_queries(x, shared.rows[place][0], lane, row0, key0, p);
    round_sums(p, pairs);
    begin_products();
    add_over_lines(dv, pairs, dys);
    end_products();
    products_done<1>();
    settle(slope);
    slope_queries(shared.rows[place][1], lane, p, slope);
    round_sums(slope, g_pairs);
    begin_products();
    add_over_lines(dk, g_pairs, queries);
    end_products();
    products_done<0>();
    settle(dk);
    settle(dv);
    if (++place == kKeysPlaces) place = 0, round ^= 1;
    row0 = row0 + kSquare < x.t ? row0 + kSquare : row_of_first;
  }
  write_sums(dk, x.scale, lane, x.dk + offset_of(x.to_k, b, g, 0, key0), x.to_k.row, x.s - key0);
  write_sums(dv, 1.0f, lane, x.dv + offset_of(x.to_v, b, g, 0, key0), x.to_v.row, x.s - key0);
}

/// p of 64 queries and 64 keys from their scores; `logs`: of this thread's two rows.
__device__ void weigh_keys(const Gradient& x, const float (&logs)[2], const Lane& lane, int row0, int key0,
                           float (&p)[32]) {
  const float unit = x.scale * kLog2e;
#pragma unroll
  for (int i = 0; i < 32; ++i) p[i] = power_of_two(fmaf(p[i], unit, -logs[i / 2 % 2]));
  if (x.see_all(row0, key0)) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int last = min(x.causal ? x.first_row + row0 + lane.row + 8 * h : kAlways, x.s - 1) - key0 - lane.column;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float& v = p[4 * (i / 2) + 2 * h + i % 2];
      v = 8 * (i / 2) + i % 2 <= last ? v : 0;
    }
  }
}

/// g' of 64 queries and 64 keys: `slope` is v dy' before, and p (v dy' - mean) after; `means`: of this thread's two
/// rows.
__device__ __forceinline__ void find_slopes(const float (&p)[32], const float (&means)[2], float (&slope)[32]) {
#pragma unroll
  for (int e = 0; e < 32; ++e) slope[e] = p[e] * (slope[e] - means[e / 2 % 2]);
}

/// Starts the copies of a block's own tile, q and dy of 64 queries, to shared memory.
__device__ __forceinline__ void copy_own(const Gradient& x, QueriesShared& shared, int row0, int r, int g, int b) {
  announce_bytes(shared.own_here, 2 * kSquareBytes);
  copy_box(shared.own[0], x.q, 0, row0, r, g, b, shared.own_here);
  copy_box(shared.own[1], x.dy, 0, row0, r, g, b, shared.own_here);
}

__global__ void __launch_bounds__(kGroupThreads, kQueriesBlocks) queries_kernel(const __grid_constant__ Gradient x) {
  wait_for_kernel_before();
  let_next_kernel_start();
  QueriesShared& shared = QueriesShared::get();
  shared.prepare();
  const int row_tiles = static_cast<int>(Gradient::tiles(x.t));
  const Turn turn(x.b * x.g * x.r, row_tiles);
  const int r = turn.head % x.r, g = turn.head / x.r % x.g, b = turn.head / (x.r * x.g);
  const int row0 = (row_tiles - 1 - turn.tile) * kSquare;
  const int seen = x.causal ? min(x.s, x.first_row + min(row0 + kSquare, x.t)) : x.s;
  const int tiles = static_cast<int>(Gradient::tiles(seen));
  const auto copy = [&](int i) {
    if (i >= tiles) return;
    const int place = i % kQueriesPlaces;
    announce_bytes(shared.here[place], 2 * kSquareBytes);
    copy_box(shared.passing[place][0], x.k, 0, i * kSquare, 0, g, b, shared.here[place]);
    copy_box(shared.passing[place][1], x.v, 0, i * kSquare, 0, g, b, shared.here[place]);
  };
  if (threadIdx.x == 0) {
    copy_own(x, shared, row0, r, g, b);
    for (int i = 0; i < kQueriesPlaces; ++i) copy(i);
  }
  const Lane lane;
  const float* const rows = x.rows_of(b, g, r, row0) + lane.row;
  const float logs[2] = {rows[0], rows[8]}, means[2] = {rows[kSquare], rows[kSquare + 8]};
  const uint64_t queries = tile_at(shared.own[0]), dys = tile_at(shared.own[1]);
  float dq[32];
  clear(dq);
  wait_for_bytes(shared.own_here, 0);
  for (int i = 0, place = 0, round = 0; i < tiles; ++i) {
    const uint64_t keys = tile_at(shared.passing[place][0]), values = tile_at(shared.passing[place][1]);
    float p[32], slope[32];
    unsigned g_pairs[16];
    wait_for_bytes(shared.here[place], round);
    begin_products();
    multiply_lines(p, queries, keys);
    end_products();
    multiply_lines(slope, dys, values);
    end_products();
    products_done<1>();
    settle(p);
    if (i > 0) {
      leave_tile(i);
      if (threadIdx.x == 0) copy(i - 1 + kQueriesPlaces);
    }
    weigh_keys(x, logs, lane, row0, i * kSquare, p);
    products_done<0>();
    settle(slope);
    find_slopes(p, means, slope);
    round_sums(slope, g_pairs);
    begin_products();
    add_over_lines(dq, g_pairs, keys);
    end_products();
    products_done<0>();
    settle(dq);
    if (++place == kQueriesPlaces) place = 0, round ^= 1;
  }
  write_sums(dq, x.scale, lane, x.dq + offset_of(x.to_q, b, g, r, row0), x.to_q.row, x.t - row0);
}

constexpr int kSumThreads = 256, kPacks = kFeatures / 8;

/// Eight threads per row; each head has `padded` rows.
__global__ void __launch_bounds__(kSumThreads) rows_kernel(const bf16* dy, const bf16* out, const float* logs,
                                                           Heads heads, int g, int r, int t, int padded, float* to) {
  wait_for_kernel_before();
  let_next_kernel_start();
  constexpr int kRows = kSumThreads / kPacks;
  const int blocks = padded / kRows, head = static_cast<int>(blockIdx.x) / blocks;
  const int row = static_cast<int>(blockIdx.x) % blocks * kRows + static_cast<int>(threadIdx.x) / kPacks;
  const int pack = static_cast<int>(threadIdx.x) % kPacks;
  float sum = 0;
  if (row < t) {
    const int64_t from = offset_of(heads, head / (g * r), head / r % g, head % r, row) + pack * 8;
    sum = dot_pack(dy + from, out + from);
  }
#pragma unroll
  for (int by = kPacks / 2; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  if (pack != 0) return;
  float* const tile = to + 2 * (static_cast<int64_t>(head) * padded + row / kSquare * kSquare) + row % kSquare;
  tile[0] = row < t ? logs[static_cast<int64_t>(head) * t + row] * kLog2e : INFINITY;
  tile[kSquare] = sum;
}

bool applies(const CudaKernelCall& call, const AttentionCall& a) {
  const AttentionSize& n = a.size;
  const int64_t most = int64_t{1} << 30;
  return n.d == kFeatures && n.e == kFeatures && is_plain_bf16(call, a) &&
         n.b * n.heads() * Gradient::tiles(n.t) * kSquare / kPacks < most && n.b * n.g * Gradient::tiles(n.s) < most &&
         n.t < most && n.s < most && is_hopper();
}

}  // namespace

CudaKernel attention_grad_by_groups(const CudaKernelCall& call, const AttentionCall& a) {
  if (!applies(call, a)) return nullptr;
  const AttentionSize& n = a.size;
  Gradient x{};
  if (!describe(x.q, call.in[a.q_at].data, a.q, n, n.t, n.r, kSquare) ||
      !describe(x.k, call.in[a.k_at].data, a.k, n, n.s, 1, kSquare) ||
      !describe(x.v, call.in[a.v_at].data, a.v, n, n.s, 1, kSquare) ||
      !describe(x.dy, call.in[0].data, a.out, n, n.t, n.r, kSquare))
    return nullptr;
  x.b = static_cast<int>(n.b), x.t = static_cast<int>(n.t), x.s = static_cast<int>(n.s), x.g = static_cast<int>(n.g);
  x.r = static_cast<int>(n.r), x.first_row = static_cast<int>(a.first_row), x.causal = a.causal, x.scale = a.scale;
  x.dq = call.out[0].as<bf16>(), x.dk = call.out[a.packed ? 0 : 1].as<bf16>(),
  x.dv = call.out[a.packed ? 0 : 2].as<bf16>();
  x.to_q = a.q, x.to_k = a.k, x.to_v = a.v;
  const int64_t padded = Gradient::tiles(n.t) * kSquare, rows = n.b * n.heads() * padded;
  call.scratch->need(2 * rows * static_cast<int64_t>(sizeof(float)));
  ask_for_shared(keys_kernel, KeysShared::bytes(), "attention_grad");
  ask_for_shared(queries_kernel, QueriesShared::bytes(), "attention_grad");
  return [x, rows, padded = static_cast<int>(padded), dy = call.in[0].as<bf16>(),
          out = call.in[call.in.size() - 2].as<bf16>(), logs = call.in.back().as<float>(), heads = a.out,
          key_blocks = n.b * n.g * Gradient::tiles(n.s), query_blocks = n.b * n.heads() * Gradient::tiles(n.t),
          scratch = call.scratch](CudaStream stream) mutable {
    auto* const to = static_cast<float*>(scratch->memory());
    x.rows = to;
    launch(rows_kernel, static_cast<unsigned>(ceil_div(rows * kPacks, kSumThreads)), kSumThreads, 0, stream,
           "attention_grad", dy, out, logs, heads, x.g, x.r, x.t, padded, to);
    launch(keys_kernel, static_cast<unsigned>(key_blocks), kGroupThreads, KeysShared::bytes(), stream, "attention_grad",
           x);
    launch(queries_kernel, static_cast<unsigned>(query_blocks), kGroupThreads, QueriesShared::bytes(), stream,
           "attention_grad", x);
  };
}

}  // namespace trainctl
