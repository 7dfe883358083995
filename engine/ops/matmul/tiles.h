// Matrix products from register tiles, in the compiler's vector types. Included by one file per instruction
// set, which defines kLanes (floats a vector), kRows, kWideRows and kDotRows; everything is internal to that file.
//
//   outer  C tile [R, V vectors] = sum over k of A[r,k] (broadcast) * B[k, V vectors]
//   dot    C tile [R, S]         = sum over vectors of k of A[r,k] * B[s,k]
//
//   A B      outer, on unpacked memory; a panel of B is packed first if many rows use it
//   A^T B    the same: A is read down its columns
//   A B^T    few rows or columns: dot. Many rows: B, the weights of a layer, is packed transposed, a panel at a time.
//            Else (B A^T)^T by outer: A is packed transposed, and B is read once and never copied
//   A^T B^T  A B^T after A is packed transposed
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "engine/ops/matmul/product_cpu.h"
#include "engine/ops/matmul/tile_packing.h"

namespace trainctl::cpu {
namespace {

typedef float Quad __attribute__((vector_size(16)));

constexpr int64_t kBlockRows = 280;     ///< most rows of A at a time
constexpr int64_t kPacked = 160 << 10;  ///< floats of scratch that stay in the L2 cache
constexpr int64_t kLongestSum = 1024;
constexpr int64_t kDeepBlock = 256;  ///< terms of k per block; C stays in the L2 cache, and A is read down its columns
/// Largest B, in floats, that stays in the L2 cache together with the other operands.
constexpr int64_t kSmallB = 1 << 16;
constexpr int64_t kLine = 16;      ///< floats of a cache line
constexpr int64_t kDotLimit = 12;  ///< most rows or columns for which A B^T uses dots

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/// The epilogue: applied to sums before they are stored in C.
struct Finish {
  bool add;           ///< adds the scaled sums to C
  float scale;        ///< 1 unless `add`
  const float* bias;  ///< starts at the tile's first column of C; null: none
  bool relu;

  Finish from(int64_t column) const { return {add, scale, bias == nullptr ? nullptr : bias + column, relu}; }
  float apply(float sum, float there, int64_t column) const {
    if (bias != nullptr) sum += bias[column];
    if (add) sum = scale * sum + there;
    return relu && sum < 0.0f ? 0.0f : sum;
  }
};

/// Memory that a product needs soon: requested while it computes, because operands of a layer come from the L3 cache
/// or from memory, whose latency neither the processor's own requests nor its order of execution hide.
struct Ahead {
  const float* stored;  ///< the memory of C in which the tile will be stored
  int64_t stored_row;
  const float* next;  ///< a row of `next_floats` floats per row of C, which the L2 cache requests; null: none
  int64_t next_row, next_floats;
};

/// tile[r][:] = sum over k of a[r, k] * b[k, :], in registers. Requests `kStored` rows of C, of `kWidth` floats each.
template <int R, int V, int kStored, int kWidth>
inline __attribute__((always_inline)) void outer_product(View a, const float* b, int64_t b_row, int64_t k, Ahead ahead,
                                                         Vec (&tile)[R][V]) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) tile[r][v] = Vec{};
  }
  const float* from = a.p;
  const int64_t part = k < 4 * kStored ? k : k / kStored + 1;  // few terms: mostly blocks that are in the cache
  for (int64_t left = k; left > 0; left -= part) {
    __builtin_prefetch(ahead.stored, 1);
    if (kWidth > 1) __builtin_prefetch(ahead.stored + kWidth - 1, 1);
    ahead.stored += ahead.stored_row;
    if (ahead.next != nullptr) {
      for (int64_t i = 0; i < ahead.next_floats; i += kLine) __builtin_prefetch(ahead.next + i, 0, 2);
      ahead.next += ahead.next_row;
    }
    for (int64_t i = smaller(left, part); i > 0; --i) {
      Vec row[V];
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) row[v] = load(b + v * kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const Vec x = from[r * a.row] - Vec{};
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) tile[r][v] += x * row[v];
      }
      from += a.col;
      b += b_row;
    }
  }
}

/// Stores a whole tile to C.
template <int R, int V>
inline __attribute__((always_inline)) void store_rows(Vec (&tile)[R][V], float* c, int64_t c_row,
                                                      const Finish& finish) {
  if (finish.bias != nullptr || finish.relu) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) {
      const Vec bias = finish.bias != nullptr ? load(finish.bias + v * kLanes) : Vec{};
      const Vec low = Vec{} - (finish.relu ? 0.0f : __builtin_inff());
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        float* to = c + r * c_row + v * kLanes;
        Vec sum = tile[r][v] + bias;
        if (finish.add) sum = finish.scale * sum + load(to);
        store(to, sum < low ? low : sum);
      }
    }
  } else if (finish.add) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) {
        float* to = c + r * c_row + v * kLanes;
        store(to, finish.scale * tile[r][v] + load(to));
      }
    }
  } else {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) store(c + r * c_row + v * kLanes, tile[r][v]);
    }
  }
}

/// Stores the first columns of a tile.
template <int R, int V>
inline void store_partial(const Vec (&tile)[R][V], float* c, int64_t c_row, const Finish& finish, int64_t columns) {
  float sums[R][V * kLanes];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) store(&sums[r][v * kLanes], tile[r][v]);
  }
  for (int r = 0; r < R; ++r) {
    float* to = c + r * c_row;
    for (int64_t j = 0; j < columns; ++j) to[j] = finish.apply(sums[r][j], to[j], j);
  }
}

/// The first R floats at p; 0 in the other lanes.
template <int R>
inline Vec load_first(const float* p) {
  Vec v{};
  __builtin_memcpy(&v, p, R * sizeof(float));
  return v;
}

/// Stores column j of the tile to row j of C.
template <int R, int V>
inline void store_transposed(const Vec (&tile)[R][V], float* c, int64_t c_row, const Finish& finish, int64_t columns) {
  static_assert(R <= kLanes);
  const Vec bias = finish.bias != nullptr ? load_first<R>(finish.bias) : Vec{};
  const Vec low = Vec{} - (finish.relu ? 0.0f : __builtin_inff());
#pragma GCC unroll 2
  for (int v = 0; v < V; ++v) {
    if (v * kLanes >= columns) return;
    Vec block[kLanes] = {};
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) block[r] = tile[r][v];
    transpose(block);
    const int64_t rows = smaller(kLanes, columns - v * kLanes);
    for (int64_t j = 0; j < rows; ++j) {
      float* to = c + (v * kLanes + j) * c_row;
      Vec sum = block[j] + bias;
      if (finish.add) sum = finish.scale * sum + load_first<R>(to);
      sum = sum < low ? low : sum;
      __builtin_memcpy(to, &sum, R * sizeof(float));
    }
  }
}

/// Up to kRows rows of A that are used soon and may not be in the cache. Null: none.
struct NextRows {
  const float* p;
  int64_t row, floats;
};

/// R rows of C (or, transposed, R columns) as a row of tiles. Every call sets up R addresses, so with a short k a
/// call should cover many tiles.
struct Strip {
  View a;          ///< [R, k]
  const float* b;  ///< [k, width of a tile] of the first tile
  int64_t b_row;
  int64_t b_step;  ///< from a tile's B to the next one's
  int64_t k;
  float* c;
  int64_t c_row;
  Finish finish;
  int64_t columns;  ///< columns of the strip; the last tile may be partial
  NextRows next;
};

/// c[R rows, columns] of one strip: outer products of R rows of a and V * kLanes columns of b at a time; kTransposed: c
/// is stored transposed.
template <int R, int V, bool kTransposed>
void outer_strip(const Strip& strip) {
  const View a = strip.a;
  const float* b = strip.b;
  const int64_t b_row = strip.b_row, b_step = strip.b_step, k = strip.k, c_row = strip.c_row;
  float* c = strip.c;
  Finish finish = strip.finish;
  constexpr int64_t kWidth = V * kLanes;
  const int64_t tiles = (strip.columns + kWidth - 1) / kWidth,
                part = round_up((strip.next.floats + tiles - 1) / tiles, kLine);
  Ahead ahead{c, c_row, strip.next.p, strip.next.row, part};
  for (int64_t left = strip.columns; left > 0; left -= V * kLanes) {
    Vec tile[R][V];
    outer_product<R, V, kTransposed ? kWidth : R, kTransposed ? R : kWidth>(a, b, b_row, k, ahead, tile);
    if (ahead.next != nullptr) ahead.next += part;
    if (kTransposed) {
      store_transposed<R, V>(tile, c, c_row, finish, smaller(left, V * kLanes));
      c += V * kLanes * c_row;
    } else {
      if (left >= V * kLanes) {
        store_rows<R, V>(tile, c, c_row, finish);
      } else {
        store_partial<R, V>(tile, c, c_row, finish, left);
      }
      c += V * kLanes;
      finish = finish.from(V * kLanes);
    }
    b += b_step;
    ahead.stored = c;
  }
}

using OuterStrip = void (*)(const Strip& strip);

/// The strip for `rows` rows, 1 to sizeof...(R).
template <int V, bool kTransposed, int... R>
OuterStrip strip_of(int64_t rows, std::integer_sequence<int, R...>) {
  static constexpr OuterStrip kStrips[] = {outer_strip<R + 1, V, kTransposed>...};
  return kStrips[rows - 1];
}

/// Computes a strip with tiles of `vectors` vectors: 1, 2, or, for up to kWideRows rows, 4.
template <bool kTransposed>
OuterStrip strip_of(int64_t rows, int64_t vectors) {
  if (vectors == 4) return strip_of<4, kTransposed>(rows, std::make_integer_sequence<int, kWideRows>());
  if (vectors == 2) return strip_of<2, kTransposed>(rows, std::make_integer_sequence<int, kRows>());
  return strip_of<1, kTransposed>(rows, std::make_integer_sequence<int, kRows>());
}

/// C = A B. `panel`: scratch for a panel of B, k x 2 vectors, and then for A, k x 1 vector per strip. B that is stored
/// by columns is packed, which takes as long as a few rows of A. `has_next`: the same rows of more terms follow.
void outer_columns(View a, View b, int64_t m, int64_t n, int64_t k, float* c, int64_t c_row, const Finish& finish,
                   float* panel, bool has_next) {
  const int64_t blocks = (m + kRows - 1) / kRows;
  const int64_t widest = b.col == 1 && (m + blocks - 1) / blocks <= kWideRows ? 4 : 2;
  const bool scattered = k >= 64 && (a.col >= 256 || a.row % 1024 == 0);  // A maps to few cache sets
  float* const packed = panel + k * 2 * kLanes;
  if (scattered) pack_strips(a, m, k, packed);
  // Columns [j, j + columns) of all rows, in strips of tiles `vectors` wide.
  const auto strips = [&](int64_t j, int64_t columns, int64_t vectors, const float* from, int64_t from_row) {
    int64_t block = 0;
    for_each_part(m, kRows, [&](int64_t i, int64_t rows) {
      NextRows next{};
      if (j == 0 && a.col == 1 && i + rows < m) next = {a.at(i + rows, 0), a.row, k};
      if (j == 0 && a.row == 1 && has_next && i < k) next = {a.at(0, k + i), a.col, m};
      const View rows_of_a =
          scattered ? View{packed + block++ * kLanes * k, 1, kLanes} : View{a.at(i, 0), a.row, a.col};
      strip_of<false>(rows, vectors)(
          {rows_of_a, from, from_row, vectors * kLanes, k, c + i * c_row + j, c_row, finish.from(j), columns, next});
    });
  };
  const bool b_fits = b.col == 1 && k * n <= kSmallB;  // in the cache: traffic is mostly C, written along its rows
  const bool reused = b.col != 1 || blocks >= 6 || (blocks >= 2 && b.row >= 2048);
  int64_t j = 0;
  for (int64_t vectors = widest; vectors > 0; vectors /= 2) {
    const int64_t width = vectors * kLanes, whole = (n - j) / width * width;
    if (b_fits) {
      if (whole > 0) strips(j, whole, vectors, b.at(0, j), b.row);
      j += whole;
      continue;
    }
    for (const int64_t end = j + whole; j < end; j += width) {
      if (reused) pack_columns({b.at(0, j), b.row, b.col}, k, width, width, panel);
      strips(j, width, vectors, reused ? panel : b.at(0, j), reused ? width : b.row);
    }
  }
  if (j == n) return;
  pack_columns({b.at(0, j), b.row, b.col}, k, n - j, kLanes, panel);
  strips(j, n - j, 1, panel, kLanes);
}

/// C = A B^T as (B A^T)^T. `packed`: scratch for A, k x m rounded up to vectors, and then for rows of B, k x 1 vector.
void outer_rows(View a, View b, int64_t m, int64_t n, int64_t k, float* c, int64_t c_row, const Finish& finish,
                float* packed) {
  pack_transposed(a, m, k, packed);
  float* const packed_b = packed + round_up(m, kLanes) * k;
  const bool reused = m >= 4 * kLanes && b.row % 1024 == 0;            // else B's rows map to few cache sets
  const int64_t pairs = (m + kLanes - 1) / (2 * kLanes) * 2 * kLanes;  // rows of A in panels of 2 vectors
  for_each_part(n, kRows, [&](int64_t j, int64_t rows) {
    View rows_of_b{b.at(j, 0), b.row, b.col};
    if (reused) {
      pack_lanes(rows_of_b, rows, k, packed_b, kLanes);
      rows_of_b = {packed_b, 1, kLanes};
    }
    Strip strip{rows_of_b, packed, 2 * kLanes, 2 * kLanes * k, k, c + j, c_row, finish.from(j), smaller(pairs, m), {}};
    if (pairs > 0) strip_of<true>(rows, 2)(strip);
    if (m <= pairs) return;
    strip.b += pairs * k;
    strip.b_row = kLanes;
    strip.c += pairs * c_row;
    strip.columns = m - pairs;
    strip_of<true>(rows, 1)(strip);
  });
}

/// The sum over lanes of each of four vectors.
inline Quad sum_lanes(const Vec& a, const Vec& b, const Vec& c, const Vec& d) {
  Quad four[4];
  const Vec* from[4] = {&a, &b, &c, &d};
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    Quad part[kLanes / 4];
    __builtin_memcpy(part, from[i], sizeof(part));
#pragma GCC unroll 4
    for (int half = kLanes / 8; half > 0; half /= 2) {
      for (int j = 0; j < half; ++j) part[j] += part[j + half];
    }
    four[i] = part[0];
  }
  // Two rounds that add adjacent lanes, in the pattern of a 4x4 transpose.
  const Quad ab =
      __builtin_shufflevector(four[0], four[1], 0, 4, 1, 5) + __builtin_shufflevector(four[0], four[1], 2, 6, 3, 7);
  const Quad cd =
      __builtin_shufflevector(four[2], four[3], 0, 4, 1, 5) + __builtin_shufflevector(four[2], four[3], 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

/// Computes C[R, S] = A[R, k] B[S, k]^T by dot products.
template <int R, int S>
void dot_tile(const float* a, int64_t a_row, const float* b, int64_t b_row, int64_t k, float* c, int64_t c_row,
              const Finish& finish) {
  Vec tile[4][4];
#pragma GCC unroll 16
  for (int r = 0; r < 4; ++r) {
#pragma GCC unroll 16
    for (int s = 0; s < 4; ++s) tile[r][s] = Vec{};
  }
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    Vec col[S];
#pragma GCC unroll 16
    for (int s = 0; s < S; ++s) col[s] = load(b + s * b_row + i);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vec x = load(a + r * a_row + i);
#pragma GCC unroll 16
      for (int s = 0; s < S; ++s) tile[r][s] += x * col[s];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const Quad sums = sum_lanes(tile[r][0], tile[r][1], tile[r][2], tile[r][3]);
    float* to = c + r * c_row;
    for (int s = 0; s < S; ++s) {
      float sum = sums[s];
      for (int64_t j = i; j < k; ++j) sum += a[r * a_row + j] * b[s * b_row + j];
      to[s] = finish.apply(sum, to[s], s);
    }
  }
}

using DotTile = void (*)(const float* a, int64_t a_row, const float* b, int64_t b_row, int64_t k, float* c,
                         int64_t c_row, const Finish& finish);

template <int... R>
DotTile dot_of(int64_t rows, int64_t columns, std::integer_sequence<int, R...>) {
  static constexpr DotTile kDots[][4] = {
      {dot_tile<R + 1, 1>, dot_tile<R + 1, 2>, dot_tile<R + 1, 3>, dot_tile<R + 1, 4>}...};
  return kDots[rows - 1][columns - 1];
}

/// C = A B^T for contiguous rows of both.
void dots(const float* a, int64_t a_row, const float* b, int64_t b_row, int64_t m, int64_t n, int64_t k, float* c,
          int64_t c_row, const Finish& finish) {
  const auto block = [&](int64_t i, int64_t rows, int64_t j, int64_t columns) {
    dot_of(rows, columns, std::make_integer_sequence<int, kDotRows>())(a + i * a_row, a_row, b + j * b_row, b_row, k,
                                                                       c + i * c_row + j, c_row, finish.from(j));
  };
  // The longer side is the outer loop: its rows are read once.
  if (n >= m) {
    for_each_part(n, 4, [&](int64_t j, int64_t columns) {
      for_each_part(m, kDotRows, [&](int64_t i, int64_t rows) { block(i, rows, j, columns); });
    });
  } else {
    for_each_part(m, kDotRows, [&](int64_t i, int64_t rows) {
      for_each_part(n, 4, [&](int64_t j, int64_t columns) { block(i, rows, j, columns); });
    });
  }
}

bool takes_dots(const Product& p) { return p.transpose_b && !p.transpose_a && (p.m <= kDotLimit || p.n <= kDotLimit); }

/// For A B^T: whether packing B moves fewer floats than packing A and storing C transposed.
bool packs_b(const Product& p) { return p.transpose_b && !takes_dots(p) && p.n * p.k < p.m * (p.k + p.n); }

/// Rows and k of a block: its packed data stays in the L2 cache, and no single-precision sum is longer than
/// kLongestSum.
struct Blocks {
  int64_t rows, k;
};

/// The most terms of k in a block. Depends on the size of the whole product, so that a sum has the same parts for any
/// number of threads.
int64_t longest_block(const Product& p) {
  const int64_t elements = p.whole_c > 0 ? p.whole_c : p.m * p.n;
  return p.transpose_a && !p.transpose_b && elements <= kPacked ? kDeepBlock : kLongestSum;
}

Blocks blocks_of(const Product& p) {
  const int64_t longest = longest_block(p), parts = (p.k + longest - 1) / longest;
  const int64_t k = (p.k + parts - 1) / parts;
  const int64_t rows = kPacked / k;
  return {smaller(p.m, packs_b(p) || longest == kDeepBlock ? rows : smaller(kBlockRows, rows)), k};
}

/// The floats of scratch memory of a product. They also suffice for products of fewer terms (the rows of one expert),
/// whose blocks may be longer than those of `p`.
int64_t scratch_floats(const Product& p) {
  if (takes_dots(p)) return 0;
  const Blocks block = blocks_of(p);
  const bool by_columns = !p.transpose_b || packs_b(p);
  const int64_t vectors = by_columns ? (block.rows + kRows - 1) / kRows + 2 : (block.rows + kLanes - 1) / kLanes + 1;
  return smaller(p.k, longest_block(p)) * vectors * kLanes;
}

/// Computes one product (batch is 1) by blocks of k and of rows. The first block of k sets C, the others add to it, and
/// the last one applies bias and relu.
void run_product(const Product& p, float* scratch) {
  const float scale = p.descend == nullptr ? 1.0f : -*p.descend;
  if (takes_dots(p)) {
    dots(p.a, p.a_row, p.b, p.b_row, p.m, p.n, p.k, p.c, p.c_row, {p.accumulate, scale, p.bias, p.relu});
    return;
  }
  const View a = p.transpose_a ? View{p.a, 1, p.a_row} : View{p.a, p.a_row, 1};
  const View b = p.transpose_b ? View{p.b, 1, p.b_row} : View{p.b, p.b_row, 1};  // [k, n]
  const Blocks block = blocks_of(p);
  for_each_part(p.k, block.k, [&](int64_t k0, int64_t k) {
    const bool last = k0 + k == p.k;
    const Finish finish{p.accumulate || k0 > 0, scale, last ? p.bias : nullptr, last && p.relu};
    for_each_part(p.m, block.rows, [&](int64_t i, int64_t m) {
      float* c = p.c + i * p.c_row;
      if (p.transpose_b && !packs_b(p)) {
        outer_rows({a.at(i, k0), a.row, a.col}, {b.at(k0, 0), b.col, b.row}, m, p.n, k, c, p.c_row, finish, scratch);
      } else {
        outer_columns({a.at(i, k0), a.row, a.col}, {b.at(k0, 0), b.row, b.col}, m, p.n, k, c, p.c_row, finish, scratch,
                      m == p.m && !last);
      }
    });
  });
}

constexpr Tiles kTileKernels = {scratch_floats, run_product};

}  // namespace
}  // namespace trainctl::cpu
