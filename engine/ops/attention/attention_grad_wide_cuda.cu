// The gradient of attention by the tensor cores of Hopper, for bf16 and heads of 136 to 256 features: two kernels,
// between which the slopes of the scores are in memory. With p = e^(score - log) and g = p (dy v' - mean), for 64 keys
// and 64 queries at a time:
//
//   rows_kernel      of each query: log, in powers of two, and mean = sum dy * out
//   keys_kernel      a block for 64 keys of a kv head, over the tiles of queries that see them:
//                      four warps   p' = k q',        dv += p' dy
//                      four warps   g' from v dy',    dk += g' q      g' goes to memory
//   queries_kernel   a block for two tiles of 64 queries of a head, over the tiles of keys that they see: dq += g k
//
// Each group of four warps of keys_kernel holds one sum of 64 keys by up to 256 features in registers. The group of dk
// adds the product of the preceding tile while the other one computes exponentials.
//
// A launch takes as many kv heads as kMostSlopes has room for their slopes, which are bf16 tiles of 8 KiB, as
// shared memory holds them: those of one query tile one after another, without tiles that no query sees.
#include "engine/ops/attention/attention_grad_wide_cuda.h"
#include "engine/ops/attention/grad_workspace.h"
#include "engine/ops/attention/score_tiles_cuda.cuh"
#include "engine/ops/small_step/tile_copies_cuda.cuh"

namespace trainctl {
namespace {

using namespace attention;
using namespace cuda;

constexpr int kTile = kSquare;  ///< queries or keys of a tile
constexpr int kThreads = 3 * kGroupThreads, kComputing = 2 * kGroupThreads;
constexpr int kSlopeNumbers = kTile * kTile;
constexpr int kHeadsAtOnce = 8;  ///< heads whose tiles run at the same time
constexpr uint64_t kNextPanel = kSquareBytes / 16;

/// The operands of keys_kernel and queries_kernel, for some kv heads of all samples.
struct Gradient {
  CUtensorMap q, k, v, dy;  ///< [b, g, r, rows, features]
  SlopeTiles tiles;
  int g, r, t, s, d, e;
  int first_row;
  bool causal;
  int first_group, groups;  ///< the kv heads of this launch
  float scale, unit;        ///< unit: factor of the scores that makes them exponents of 2
  /// [b, g, r, tiles, 2, 64]: logs, then means, in the order of row_at(); beyond t: infinite, then 0
  const float* rows;
  bf16* slopes;  ///< [groups, r, tiles of SlopeTiles, 64 keys, 64 queries]
  bf16 *dq, *dk, *dv;
  Heads to_q, to_k, to_v;

  __device__ Sight sight() const { return {s, first_row, causal}; }
  /// The first query tile that sees keys from `key0` on, and the first whose queries all see 64 of them.
  __device__ int first_tile(int key0) const { return causal ? max(0, key0 - first_row) / kTile : 0; }
  __device__ int sees_all(int key0) const {
    if (key0 + kTile > s) return kAlways;
    return causal ? max(0, key0 + kTile - 1 - first_row + kTile - 1) / kTile : 0;
  }
  __device__ bf16* slopes_at(int group, int head, int tile, int key_tile) const {
    const int64_t index = (static_cast<int64_t>(group) * r + head) * tiles.all() + tiles.before(tile) + key_tile;
    return slopes + index * kSlopeNumbers;
  }
};

/// The head and the tile (turn) of a block: blocks are numbered so that a few heads run at a time, turn by turn.
struct Turn {
  int head, turn;

  __device__ Turn(int heads, int turns) {
    const int first = static_cast<int>(blockIdx.x) / (kHeadsAtOnce * turns) * kHeadsAtOnce;
    const int count = min(kHeadsAtOnce, heads - first), at = static_cast<int>(blockIdx.x) - first * turns;
    head = first + at % count;
    turn = at / count;
  }
};

__device__ void copy_tile_to_memory(bf16* to, const unsigned char* from) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
               "n"(kSquareBytes)
               : "memory");
#endif
}
/// All but the last of this thread's copies from shared memory have read it.
__device__ void all_but_last_read() {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
#endif
}

/// d = a b' over Panels * 64 features.
template <int Panels>
__device__ void multiply_panels(float (&d)[32], uint64_t a, uint64_t b) {
  multiply_lines(d, a, b);
#pragma unroll
  for (int panel = 1; panel < Panels; ++panel) {
#pragma unroll
    for (int k = 0; k < 4; ++k)
      add_product(d, a + panel * kNextPanel + k * kNextColumns, b + panel * kNextPanel + k * kNextColumns);
  }
}

/// D, E: panels of 64 features of queries and keys, and of values.
template <int D, int E>
struct alignas(1024) KeysShared {
  static constexpr int kStages = D + E <= 5 ? 3 : 2;  ///< query tiles
  unsigned char keys[D][kSquareBytes], values[E][kSquareBytes];
  unsigned char queries[kStages][D][kSquareBytes], dys[kStages][E][kSquareBytes];
  unsigned char slopes[2][kSquareBytes];
  float weights[kTile * kTile];  ///< p', in the order of the threads that hold it
  float logs[kStages][kTile], means[kStages][kTile];
  alignas(8) float weights_full[2], weights_empty[2];
  alignas(8) float own_here[2], queries_here[kStages][2],
      queries_left[kStages][2], dys_here[kStages][2], dys_left[kStages][2];

  static constexpr size_t bytes() { return sizeof(KeysShared) + 1024; }
  /// Called by the whole block, before the first copy.
  __device__ void prepare() {
    if (threadIdx.x == 0) {
      prepare_announcements(own_here);
      init_barrier(weights_full, kGroupThreads);
      init_barrier(weights_empty, kGroupThreads);
      for (int i = 0; i < kStages; ++i) {
        prepare_announcements(queries_here[i]);
        prepare_announcements(dys_here[i]);
        init_barrier(queries_left[i], kComputing);
        init_barrier(dys_left[i], kComputing);
      }
      publish_to_copies();
    }
    __syncthreads();
  }
};
static_assert(KeysShared<4, 4>::bytes() <= 227 * 1024);

template <class T>
__device__ T& shared_as() {
  extern __shared__ unsigned char bytes[];
  const unsigned past = shared_address(bytes) % 1024;
  return *reinterpret_cast<T*>(bytes + (past == 0 ? 0 : 1024 - past));
}

/// Numbers of the block's named barriers; 0 is the one of __syncthreads().
enum Barrier { kAll, kSlopesGroup };

/// The keys of a block, and the query tiles of all heads of the group that see them, one after another.
struct KeysPlace {
  int group, b, g, key0, first, each;

  __device__ explicit KeysPlace(const Gradient& x) {
    const Turn turn(x.groups, x.tiles.key_tiles);
    group = turn.head;
    b = (x.first_group + group) / x.g, g = (x.first_group + group) % x.g;
    key0 = turn.turn * kTile;
    first = x.first_tile(key0);
    each = max(0, x.tiles.query_tiles - first);
  }
};

template <int D, int E>
__device__ void load_queries(const Gradient& x, KeysShared<D, E>& shared, const KeysPlace& at) {
  announce_bytes(shared.own_here, (D + E) * kSquareBytes);
  for (int i = 0; i < D; ++i) copy_box(shared.keys[i], x.k, 64 * i, at.key0, 0, at.g, at.b, shared.own_here);
  for (int i = 0; i < E; ++i) copy_box(shared.values[i], x.v, 64 * i, at.key0, 0, at.g, at.b, shared.own_here);
  constexpr int kNumbers = kTile * static_cast<int>(sizeof(float)), kStages = KeysShared<D, E>::kStages;
  int loaded = 0;
  for (int head = 0; head < x.r; ++head) {
    const float* rows =
        x.rows +
        ((static_cast<int64_t>(x.first_group + at.group) * x.r + head) * x.tiles.query_tiles + at.first) * 2 * kTile;
    for (int i = 0; i < at.each; ++i, ++loaded, rows += 2 * kTile) {
      const int stage = loaded % kStages, row0 = (at.first + i) * kTile, before = (loaded / kStages - 1) % 2;
      float *const queries = shared.queries_here[stage], *const dys = shared.dys_here[stage];
      if (loaded >= kStages) wait_for_bytes(shared.dys_left[stage], before);
      announce_bytes(dys, E * kSquareBytes + kNumbers);
      copy_bytes<kNumbers>(shared.means[stage], rows + kTile, dys);
      for (int p = 0; p < E; ++p) copy_box(shared.dys[stage][p], x.dy, 64 * p, row0, head, at.g, at.b, dys);
      if (loaded >= kStages) wait_for_bytes(shared.queries_left[stage], before);
      announce_bytes(queries, D * kSquareBytes + kNumbers);
      copy_bytes<kNumbers>(shared.logs[stage], rows, queries);
      for (int p = 0; p < D; ++p) copy_box(shared.queries[stage][p], x.q, 64 * p, row0, head, at.g, at.b, queries);
    }
  }
}

/// The group of warps that computes p' and dv.
template <int D, int E>
__device__ void compute_values(const Gradient& x, KeysShared<D, E>& shared, const KeysPlace& at) {
  constexpr int kStages = KeysShared<D, E>::kStages;
  const Lane lane;
  const uint64_t keys = square_at(shared_address(shared.keys[0]));
  auto* const weights = reinterpret_cast<float4*>(shared.weights) + threadIdx.x % kGroupThreads;
  const int all = at.each * x.r, sees_all = x.sees_all(at.key0);
  float dv[32 * E], p[32];
  unsigned pairs[16];
  clear(dv);
  wait_for_bytes(shared.own_here, 0);
  for (int i = 0, tile = at.first; i < all; ++i) {
    const int stage = i % kStages, round = i / kStages % 2;
    wait_for_bytes(shared.queries_here[stage], round);
    begin_products();
    multiply_panels<D>(p, keys, square_at(shared_address(shared.queries[stage][0])));
    end_products();
    products_done<0>();
    settle(p);
    if constexpr (kStages > 2) {  // dv of the preceding tile is done too
      settle(dv);
      if (i > 0) arrive(shared.dys_left[(i - 1) % kStages]);
    }
    weigh(x.unit, shared.logs[stage], lane, p);
    arrive(shared.queries_left[stage]);
    if (tile < sees_all) mask(x.sight(), lane, tile * kTile, at.key0, p);
    if (i > 0) wait_for_bytes(shared.weights_empty, (i - 1) % 2);
#pragma unroll
    for (int j = 0; j < 8; ++j)
      weights[j * kGroupThreads] = make_float4(p[4 * j], p[4 * j + 1], p[4 * j + 2], p[4 * j + 3]);
    arrive(shared.weights_full);
    round_sums(p, pairs);
    wait_for_bytes(shared.dys_here[stage], round);
    begin_products();
    add_over_lines(dv, pairs, squares_at(shared_address(shared.dys[stage][0]), kSquareBytes));
    end_products();
    if constexpr (kStages == 2) {  // the next tile needs the place soon
      products_done<0>();
      settle(dv);
      arrive(shared.dys_left[stage]);
    }
    if (++tile == x.tiles.query_tiles) tile = at.first;
  }
  products_done<0>();
  settle(dv);
  write_sums(dv, 1.0f, lane, x.dv + offset_of(x.to_v, at.b, at.g, 0, at.key0), x.to_v.row, x.s - at.key0, x.e);
}

/// Stores a tile of slopes from the registers of a group of warps, through shared memory.
__device__ void store_slopes(unsigned char* tile, const Lane& lane, const unsigned (&pairs)[16], bf16* to) {
  const bool first = threadIdx.x % kGroupThreads == 0;
  const int line = 16 * lane.warp + lane.lane % 16;
  const unsigned address = shared_address(tile) + line * 128 + (lane.lane / 16 ^ line % 8) * 16;
  if (first) all_but_last_read();
  wait_at<kGroupThreads>(kSlopesGroup);
#pragma unroll
  for (int j = 0; j < 4; ++j) store_matrices(address ^ (32 * j), pairs + 4 * j);
  publish_to_copies();
  wait_at<kGroupThreads>(kSlopesGroup);
  if (!first) return;
  copy_tile_to_memory(to, tile);
  end_copies();
}

/// Reads this thread's 32 values of p' from shared memory, where the other group of warps stored them, `weights` being
/// the address of the first four.
__device__ __forceinline__ void read_weights(const float4* weights, float (&p)[32]) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float4 four = weights[j * kGroupThreads];
    p[4 * j] = four.x, p[4 * j + 1] = four.y, p[4 * j + 2] = four.z, p[4 * j + 3] = four.w;
  }
}

/// g' from v dy' in g, as soon as p' has been stored: by the values of the rows of a tile of queries in `stage`.
template <int D, int E>
__device__ __forceinline__ void find_slopes(KeysShared<D, E>& shared, const Lane& lane, int stage, int parity,
                                            float (&g)[32]) {
  float p[32];
  wait_for_bytes(shared.weights_full, parity);
  read_weights(reinterpret_cast<const float4*>(shared.weights) + threadIdx.x % kGroupThreads, p);
  arrive(shared.weights_empty);
  slope(shared.means[stage], lane, p, g);
  arrive(shared.dys_left[stage]);
}

/// The group of warps that computes g' and dk.
template <int D, int E>
__device__ void compute_keys(const Gradient& x, KeysShared<D, E>& shared, const KeysPlace& at) {
  constexpr int kStages = KeysShared<D, E>::kStages;
  const Lane lane;
  const uint64_t values = square_at(shared_address(shared.values[0]));
  const int all = at.each * x.r, key_tile = at.key0 / kTile;
  float dk[32 * D], g[32];
  unsigned pairs[16];
  clear(dk);
  const auto dys_at = [&](int stage) { return square_at(shared_address(shared.dys[stage][0])); };
  const auto queries_at = [&](int stage) { return squares_at(shared_address(shared.queries[stage][0]), kSquareBytes); };
  wait_for_bytes(shared.own_here, 0);
  if (all > 0) {
    wait_for_bytes(shared.dys_here[0], 0);
    begin_products();
    multiply_panels<E>(g, values, dys_at(0));
    end_products();
    products_done<0>();
    settle(g);
    find_slopes(shared, lane, 0, 0, g);
    round_sums(g, pairs);
    store_slopes(shared.slopes[0], lane, pairs, x.slopes_at(at.group, 0, at.first, key_tile));
  }
  for (int i = 1, head = 0, tile = at.first; i < all; ++i) {
    const int stage = i % kStages, before = (i - 1) % kStages;
    if (++tile == x.tiles.query_tiles) tile = at.first, ++head;
    wait_for_bytes(shared.queries_here[before], (i - 1) / kStages % 2);
    wait_for_bytes(shared.dys_here[stage], i / kStages % 2);
    begin_products();
    multiply_panels<E>(g, values, dys_at(stage));
    end_products();
    add_over_lines(dk, pairs, queries_at(before));
    end_products();
    products_done<1>();
    settle(g);
    find_slopes(shared, lane, stage, i % 2, g);
    products_done<0>();
    settle(dk);
    arrive(shared.queries_left[before]);
    round_sums(g, pairs);
    store_slopes(shared.slopes[i % 2], lane, pairs, x.slopes_at(at.group, head, tile, key_tile));
  }
  if (all > 0) {
    wait_for_bytes(shared.queries_here[(all - 1) % kStages], (all - 1) / kStages % 2);
    begin_products();
    add_over_lines(dk, pairs, queries_at((all - 1) % kStages));
    end_products();
    products_done<0>();
    settle(dk);
  }
  write_sums(dk, x.scale, lane, x.dk + offset_of(x.to_k, at.b, at.g, 0, at.key0), x.to_k.row, x.s - at.key0, x.d);
  if (threadIdx.x % kGroupThreads == 0) copies_done();
}

template <int D, int E>
__global__ void __launch_bounds__(kThreads, 1) keys_kernel(const __grid_constant__ Gradient x) {
  wait_for_kernel_before();
  let_next_kernel_start();
  auto& shared = shared_as<KeysShared<D, E>>();
  shared.prepare();
  const KeysPlace at(x);
  if (threadIdx.x < kGroupThreads) {
    give_registers<24>();
    if (threadIdx.x == 0) load_queries(x, shared, at);
  } else {
    take_registers<240>();
    if (threadIdx.x < 2 * kGroupThreads) {
      compute_values(x, shared, at);
    } else {
      compute_keys(x, shared, at);
    }
  }
}

template <int D>
struct alignas(1024) QueriesShared {
  static constexpr int kPlaces = 4;
  unsigned char keys[kPlaces][D][kSquareBytes], slopes[kPlaces][2][kSquareBytes];
  alignas(8) float here[kPlaces][2], left[kPlaces][2];

  static constexpr size_t bytes() { return sizeof(QueriesShared) + 1024; }
  __device__ void prepare() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kPlaces; ++i) {
        prepare_announcements(here[i]);
        init_barrier(left[i], kComputing);
      }
      publish_to_copies();
    }
    __syncthreads();
  }
};
static_assert(QueriesShared<4>::bytes() <= 227 * 1024);

/// Two query tiles of a block, and how many key tiles each sees.
struct QueriesPlace {
  int group, head, b, g, tile, count[2];

  __device__ explicit QueriesPlace(const Gradient& x) {
    const int pairs = (x.tiles.query_tiles + 1) / 2;
    const Turn turn(x.groups * x.r, pairs);
    group = turn.head / x.r, head = turn.head % x.r;
    b = (x.first_group + group) / x.g, g = (x.first_group + group) % x.g;
    tile = 2 * (pairs - 1 - turn.turn);
    count[0] = x.tiles.seen_by(tile);
    count[1] = tile + 1 < x.tiles.query_tiles ? x.tiles.seen_by(tile + 1) : 0;
  }
  __device__ int most() const { return max(count[0], count[1]); }
};

template <int D>
__global__ void __launch_bounds__(kThreads, 1) queries_kernel(const __grid_constant__ Gradient x) {
  constexpr int kPlaces = QueriesShared<D>::kPlaces;
  wait_for_kernel_before();
  let_next_kernel_start();
  auto& shared = shared_as<QueriesShared<D>>();
  shared.prepare();
  const QueriesPlace at(x);
  const int most = at.most();
  if (threadIdx.x < kGroupThreads) {
    give_registers<24>();
    if (threadIdx.x != 0) return;
    for (int i = 0; i < most; ++i) {
      const int place = i % kPlaces;
      float* const here = shared.here[place];
      if (i >= kPlaces) wait_for_bytes(shared.left[place], (i / kPlaces - 1) % 2);
      announce_bytes(here, (D + (i < at.count[0]) + (i < at.count[1])) * kSquareBytes);
      for (int j = 0; j < 2; ++j) {
        if (i >= at.count[j]) continue;
        copy_bytes<kSquareBytes>(reinterpret_cast<float*>(shared.slopes[place][j]),
                                 reinterpret_cast<const float*>(x.slopes_at(at.group, at.head, at.tile + j, i)), here);
      }
      for (int p = 0; p < D; ++p) copy_box(shared.keys[place][p], x.k, 64 * p, i * kTile, 0, at.g, at.b, here);
    }
    return;
  }
  take_registers<240>();
  const int mine = static_cast<int>(threadIdx.x) / kGroupThreads - 1, count = mine == 0 ? at.count[0] : at.count[1];
  const Lane lane;
  float dq[32 * D];
  clear(dq);
  for (int i = 0; i < count; ++i) {
    const int place = i % kPlaces;
    wait_for_bytes(shared.here[place], i / kPlaces % 2);
    begin_products();
    add_over_lines<kTile>(dq, square_at(shared_address(shared.slopes[place][mine])),
                          squares_at(shared_address(shared.keys[place][0]), kSquareBytes));
    end_products();
    products_done<0>();
    settle(dq);
    arrive(shared.left[place]);
  }
  for (int i = count; i < most; ++i) {  // keys that only the other tile sees
    wait_for_bytes(shared.here[i % kPlaces], i / kPlaces % 2);
    arrive(shared.left[i % kPlaces]);
  }
  const int row0 = (at.tile + mine) * kTile;
  write_sums(dq, x.scale, lane, x.dq + offset_of(x.to_q, at.b, at.g, at.head, row0), x.to_q.row, x.t - row0, x.d);
}

constexpr int kSumThreads = 256, kSumRows = kSumThreads / 32;

/// A warp per row; each head has whole tiles.
__global__ void __launch_bounds__(kSumThreads)
    rows_kernel(const bf16* dy, const bf16* out, const float* logs, Heads heads, int g, int r, int t, int e, int tiles,
                float* to) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int blocks = tiles * kTile / kSumRows, head = static_cast<int>(blockIdx.x) / blocks;
  const int row = static_cast<int>(blockIdx.x) % blocks * kSumRows + static_cast<int>(threadIdx.x) / 32;
  const int pack = static_cast<int>(threadIdx.x) % 32;
  float sum = 0;
  if (row < t && 8 * pack < e) {
    const int64_t from = offset_of(heads, head / (g * r), head / r % g, head % r, row) + pack * 8;
    sum = dot_pack(dy + from, out + from);
  }
#pragma unroll
  for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  if (pack != 0) return;
  float* const tile = to + 2 * kTile * (static_cast<int64_t>(head) * tiles + row / kTile) + row_at(row % kTile);
  tile[0] = row < t ? logs[static_cast<int64_t>(head) * t + row] * kLog2e : INFINITY;
  tile[kTile] = sum;
}

/// Calls run with the kernels for the panels of heads.
template <class Run>
auto with_panels(const AttentionSize& n, Run run) {
  const auto with_values = [&](auto d) {
    constexpr int kD = d;
    if (n.e <= 128)
      return run(keys_kernel<kD, 2>, KeysShared<kD, 2>::bytes(), queries_kernel<kD>, QueriesShared<kD>::bytes());
    if (n.e <= 192)
      return run(keys_kernel<kD, 3>, KeysShared<kD, 3>::bytes(), queries_kernel<kD>, QueriesShared<kD>::bytes());
    return run(keys_kernel<kD, 4>, KeysShared<kD, 4>::bytes(), queries_kernel<kD>, QueriesShared<kD>::bytes());
  };
  if (n.d <= 192) return with_values(std::integral_constant<int, 3>{});
  return with_values(std::integral_constant<int, 4>{});
}

}  // namespace

CudaKernel attention_grad_of_wide_heads(const CudaKernelCall& call, const AttentionCall& a) {
  const AttentionSize& n = a.size;
  if (!wide_takes(n) || !is_plain_bf16(call, a) || !is_hopper()) return nullptr;
  const WideMemory memory(n, a.causal, a.first_row);
  if (memory.groups == 0) return nullptr;
  AttentionSize of_values = n;
  of_values.d = n.e;
  Gradient x{};
  if (!describe(x.q, call.in[a.q_at].data, a.q, n, n.t, n.r, kTile) ||
      !describe(x.k, call.in[a.k_at].data, a.k, n, n.s, 1, kTile) ||
      !describe(x.v, call.in[a.v_at].data, a.v, of_values, n.s, 1, kTile) ||
      !describe(x.dy, call.in[0].data, a.out, of_values, n.t, n.r, kTile))
    return nullptr;
  x.tiles = memory.tiles;
  x.g = static_cast<int>(n.g), x.r = static_cast<int>(n.r), x.t = static_cast<int>(n.t), x.s = static_cast<int>(n.s);
  x.d = static_cast<int>(n.d), x.e = static_cast<int>(n.e);
  x.first_row = static_cast<int>(a.first_row), x.causal = a.causal, x.scale = a.scale, x.unit = a.scale * kLog2e;
  x.dq = call.out[0].as<bf16>(), x.dk = call.out[a.packed ? 0 : 1].as<bf16>(),
  x.dv = call.out[a.packed ? 0 : 2].as<bf16>();
  x.to_q = a.q, x.to_k = a.k, x.to_v = a.v;
  call.scratch->need(memory.bytes());
  return with_panels(n, [&](auto* keys, size_t keys_shared, auto* queries, size_t queries_shared) -> CudaKernel {
    ask_for_shared(keys, keys_shared, "attention_grad");
    ask_for_shared(queries, queries_shared, "attention_grad");
    return [=, dy = call.in[0].as<bf16>(), out = call.in[call.in.size() - 2].as<bf16>(),
            logs = call.in.back().as<float>(), heads = a.out, scratch = call.scratch](CudaStream stream) mutable {
      auto* const rows = static_cast<float*>(scratch->memory());
      x.rows = rows;
      x.slopes = reinterpret_cast<bf16*>(reinterpret_cast<char*>(rows) + memory.rows_bytes());
      const auto run = [&](auto* kernel, int64_t blocks, int threads, size_t shared, const auto&... arguments) {
        launch(kernel, static_cast<unsigned>(blocks), static_cast<unsigned>(threads), shared, stream, "attention_grad",
               arguments...);
      };
      const int tiles = memory.tiles.query_tiles;
      run(rows_kernel, n.b * n.heads() * tiles * kTile / kSumRows, kSumThreads, 0, dy, out, logs, heads, x.g, x.r, x.t,
          x.e, tiles, rows);
      for (int64_t first = 0; first < n.b * n.g; first += memory.groups) {
        x.first_group = static_cast<int>(first);
        x.groups = static_cast<int>(std::min(memory.groups, n.b * n.g - first));
        run(keys, int64_t{x.groups} * memory.tiles.key_tiles, kThreads, keys_shared, x);
        run(queries, int64_t{x.groups} * n.r * ((tiles + 1) / 2), kThreads, queries_shared, x);
      }
    };
  });
}

}  // namespace trainctl
