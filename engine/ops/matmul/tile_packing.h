// Vectors of kLanes floats, and copies of parts of matrices in the order in which the tiles (tiles.h) read them. As for
// tiles.h, the including file defines kLanes and kRows.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

namespace trainctl::cpu {
namespace {

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef float LooseVec __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

inline Vec load(const float* p) { return *reinterpret_cast<const LooseVec*>(p); }
inline void store(float* p, Vec v) { *reinterpret_cast<LooseVec*>(p) = v; }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/// Swaps v[i][j] and v[j][i], in log2 rounds; each interleaves the halves of the block.
template <int... L>
inline __attribute__((always_inline)) void transpose(Vec (&v)[kLanes], std::integer_sequence<int, L...>) {
#pragma GCC unroll 8
  for (int round = kLanes; round > 1; round /= 2) {
    Vec next[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes / 2; ++i) {
      next[2 * i] = __builtin_shufflevector(v[i], v[i + kLanes / 2], (L % 2 * kLanes + L / 2)...);
      next[2 * i + 1] = __builtin_shufflevector(v[i], v[i + kLanes / 2], (L % 2 * kLanes + L / 2 + kLanes / 2)...);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) v[i] = next[i];
  }
}

inline __attribute__((always_inline)) void transpose(Vec (&v)[kLanes]) {
  transpose(v, std::make_integer_sequence<int, kLanes>());
}

/// A matrix: element (r, c) at p[r * row + c * col].
struct View {
  const float* p;
  int64_t row, col;
  const float* at(int64_t r, int64_t c) const { return p + r * row + c * col; }
};

/// Calls f(first, count) for the fewest parts of n of size at most `most`, all of nearly equal size.
template <class F>
void for_each_part(int64_t n, int64_t most, F f) {
  const int64_t parts = (n + most - 1) / most;
  for (int64_t i = 0, first = 0; i < parts; ++i) {
    const int64_t count = n / parts + (i < n % parts ? 1 : 0);
    f(first, count);
    first += count;
  }
}

/// to[k, 0 .. width) = from[k, 0 .. columns), padded with zeros.
void pack_panel(const float* from, int64_t from_row, int64_t k, int64_t columns, int64_t width, float* to) {
  for (int64_t i = 0; i < k; ++i) {
    if (columns == width) {
      for (int64_t j = 0; j < width; j += kLanes) store(to + j, load(from + j));
    } else {
      for (int64_t j = 0; j < width; ++j) to[j] = j < columns ? from[j] : 0.0f;
    }
    from += from_row;
    to += width;
  }
}

/// pack_lanes requests a line this many k before it loads it.
constexpr int64_t kAhead = 32;

/// to[k][lane] = from[lane, k] for `rows` lanes; zeros in the others.
void pack_lanes(View from, int64_t rows, int64_t k, float* to, int64_t to_row) {
  int64_t i = 0;
  if (from.col == 1) {
    for (; i + kLanes <= k; i += kLanes) {
      Vec block[kLanes];
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r) block[r] = r < rows ? load(from.at(r, i)) : Vec{};
      transpose(block);
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r) store(to + (i + r) * to_row, block[r]);
    }
  } else if (from.row == 1 && from.col >= kLanes) {
    // Lanes beyond the rows read memory that is still before the next k's, and are never used.
    for (; i + 1 < k; ++i) {
      __builtin_prefetch(from.at(0, i + kAhead), 0, 2);
      store(to + i * to_row, load(from.at(0, i)));
    }
  }
  for (; i < k; ++i) {
    for (int64_t r = 0; r < kLanes; ++r) to[i * to_row + r] = r < rows ? *from.at(r, i) : 0.0f;
  }
}

/// Packs rows [0, m) of A in strips of lanes: strip s of `rows` rows is [k][lanes] at s * kLanes * k. A that is stored
/// by columns is read in runs of k, so that all strips read the lines of a run while they are in the L1 cache.
void pack_strips(View a, int64_t m, int64_t k, float* to) {
  constexpr int64_t kRun = 32;
  const int64_t run = a.row == 1 ? kRun : k;
  for (int64_t i = 0; i < k; i += run) {
    float* strip = to + i * kLanes;
    for_each_part(m, kRows, [&](int64_t first, int64_t rows) {
      pack_lanes({a.at(first, i), a.row, a.col}, rows, smaller(run, k - i), strip, kLanes);
      strip += kLanes * k;
    });
  }
}

/// to[k, 0 .. width) = columns [0, columns) of B [k, n], padded with zeros.
void pack_columns(View b, int64_t k, int64_t columns, int64_t width, float* to) {
  if (b.col == 1) return pack_panel(b.p, b.row, k, columns, width, to);
  for (int64_t j = 0; j < width; j += kLanes)
    pack_lanes({b.at(0, j), b.col, b.row}, smaller(kLanes, columns - j), k, to + j, width);
}

/// to[panel][k][lane] = from[row, k] with the rows of A as lanes: panels of 2 vectors, the last one of 1 if that is
/// enough. Panel p starts at p * 2 * kLanes * k.
void pack_transposed(View from, int64_t rows, int64_t k, float* to) {
  for (int64_t first = 0; first < rows;) {
    const int64_t width = rows - first > kLanes ? 2 * kLanes : kLanes;
    const int64_t count = smaller(width, rows - first);
    for (int64_t r = 0; r < width; r += kLanes) {
      pack_lanes({from.at(first + r, 0), from.row, from.col}, smaller(kLanes, count - r), k, to + r, width);
    }
    to += width * k;
    first += count;
  }
}

}  // namespace
}  // namespace trainctl::cpu
