// The calls of cuDNN's attention, and their workspace, as a plan shows it and as the kernel asks for it. A
// deterministic gradient needs 2 bytes for each score, rounded up to tiles: it is computed in slices of samples, or of
// heads, that stay below a limit.
//
// The library's heads are the same distance apart. Packed for each kv head, those of grouped queries are not:
//
//     q q k v | q q k v | q q k v      2 query heads per kv head, 3 kv heads
//
// Then a call takes one kv head of several samples, or several kv heads of one sample in the place of samples,
// whichever makes fewer calls.
#pragma once

#include <algorithm>

#include "engine/ops/attention/attention_shape.h"

namespace trainctl {

inline constexpr int64_t kForwardWorkspace = int64_t{4} << 20;
inline constexpr int64_t kMostGradWorkspace = int64_t{256} << 20;

/// Number of samples, and of kv heads per sample, in one call of the library. 0: none fits.
struct AttentionSlice {
  int64_t b = 0, g = 0;
  bool heads_as_samples = false;  ///< one sample, whose kv heads with their queries take the place of samples

  int64_t calls(const AttentionSize& n) const { return (n.b / b) * (n.g / g); }
};

/// Upper bound of the workspace, with room for the buffers that the library adds to scores, dq in f32 and row sums.
inline int64_t grad_workspace(const AttentionSize& n, const AttentionSlice& slice) {
  const auto tiles = [](int64_t rows) { return (rows + 127) / 128 * 128; };
  // With grouped queries also dk and dv of each query head, before they are added.
  const int64_t of_keys = n.r > 1 ? 2 * tiles(n.s) * (n.d + n.e) : 0;
  const int64_t head = 2 * tiles(n.t) * tiles(n.s) + 4 * tiles(n.t) * (n.d + 2) + of_keys;
  return slice.b * slice.g * n.r * head * 9 / 8 + (int64_t{1} << 20);
}

/// The next smaller slice: of samples, down to one, then of heads. 0: there is none.
inline AttentionSlice smaller(const AttentionSize& n, AttentionSlice slice) {
  const auto divisor_below = [](int64_t whole, int64_t part) {
    do --part;
    while (part > 0 && whole % part != 0);
    return part;
  };
  if (slice.b > 1) {
    slice.b = divisor_below(n.b, slice.b);
    return slice;
  }
  slice.g = divisor_below(n.g, slice.g);
  return slice.g > 0 ? slice : AttentionSlice{};
}

/// The largest slice that fits(slice). `uniform`: all query heads are the same distance apart.
template <class Fits>
AttentionSlice largest_slice(const AttentionSize& n, bool uniform, const Fits& fits) {
  const auto shrink = [&](AttentionSlice slice) {
    while (slice.b > 0 && !fits(slice)) slice = smaller(n, slice);
    return slice;
  };
  if (uniform) return shrink({n.b, n.g});
  const AttentionSlice of_one_head = shrink({n.b, 1}), of_one_sample = shrink({1, n.g, true});
  if (of_one_head.b == 0) return of_one_sample;
  return of_one_sample.b > 0 && of_one_sample.calls(n) < of_one_head.calls(n) ? of_one_sample : of_one_head;
}

/// If the library has no deterministic gradient of grouped queries, a call computes one query head of each group,
/// with its own dk and dv, which are then added. This is the size of such a call.
inline AttentionSize one_query(AttentionSize n) {
  n.r = 1;
  return n;
}
/// Bytes of one part, dk or dv of a query head of each group, in bf16.
inline int64_t part_bytes(const AttentionSize& n, const AttentionSlice& slice) {
  return (2 * slice.b * slice.g * n.s * std::max(n.d, n.e) + 255) / 256 * 256;
}
/// Bytes of the logs of one query head of each group.
inline int64_t log_bytes(const AttentionSize& n, const AttentionSlice& slice) {
  return (4 * slice.b * slice.g * n.t + 255) / 256 * 256;
}
/// Before the library's workspace: dk and dv of all query heads, and the logs of one.
inline int64_t scratch_of_parts(const AttentionSize& n, const AttentionSlice& slice) {
  return 2 * n.r * part_bytes(n, slice) + log_bytes(n, slice);
}
inline int64_t parts_and_workspace(const AttentionSize& n, const AttentionSlice& slice) {
  return scratch_of_parts(n, slice) + grad_workspace(one_query(n), slice);
}
inline AttentionSlice query_slice(const AttentionSize& n) {
  return largest_slice(one_query(n), true,
                       [&](const AttentionSlice& s) { return parts_and_workspace(n, s) <= kMostGradWorkspace; });
}

inline AttentionSlice grad_slice(const AttentionSize& n, bool uniform) {
  return largest_slice(n, uniform, [&](const AttentionSlice& s) { return grad_workspace(n, s) <= kMostGradWorkspace; });
}

#if defined(__CUDACC__)
#define TRAINCTL_ON_BOTH __host__ __device__
#else
#define TRAINCTL_ON_BOTH
#endif

/// The tiles of 64 queries by 64 keys of a head in which some query attends to some key, in the order of the queries.
/// The kernels for wide heads store the slopes (gradients of the scores) of these tiles only.
struct SlopeTiles {
  int query_tiles = 0, key_tiles = 0;
  int of_first = 0;  ///< key tiles that the first query tile sees; each next one sees one more, if `grows`
  bool grows = false;

  SlopeTiles() = default;
  SlopeTiles(const AttentionSize& n, bool causal, int64_t first_row)
      : query_tiles(static_cast<int>((n.t + 63) / 64)), key_tiles(static_cast<int>((n.s + 63) / 64)), grows(causal) {
    const int64_t seen = (first_row + 63) / 64 + 1;
    of_first = causal && seen < key_tiles ? static_cast<int>(seen) : key_tiles;
  }

  TRAINCTL_ON_BOTH int seen_by(int tile) const {
    const int seen = of_first + (grows ? tile : 0);
    return seen < key_tiles ? seen : key_tiles;
  }
  /// Number of tiles of the query tiles before this one.
  TRAINCTL_ON_BOTH int64_t before(int tile) const {
    const int growing = !grows ? 0 : tile < key_tiles - of_first ? tile : key_tiles - of_first;
    return int64_t{growing} * of_first + int64_t{growing} * (growing - 1) / 2 + int64_t{tile - growing} * key_tiles;
  }
  TRAINCTL_ON_BOTH int64_t all() const { return before(query_tiles); }
};

/// Returns whether attention_grad_wide_cuda.h takes heads of this size.
inline bool wide_takes(const AttentionSize& n) {
  constexpr int64_t kMost = int64_t{1} << 24, kLongest = int64_t{1} << 17;
  return n.d > 128 && n.d <= 256 && n.e > 64 && n.e <= 256 && n.d % 8 == 0 && n.e % 8 == 0 && n.t <= kLongest &&
         n.s <= kLongest && n.b * n.heads() * ((n.t + 7) / 8 + 8) < kMost && n.b * n.g * ((n.s + 63) / 64) < kMost;
}

/// The most memory for slopes: enough for two passes over two causal heads of 8,192 rows.
inline constexpr int64_t kMostSlopes = int64_t{288} << 20;

/// The memory of the gradient of wide heads: two numbers of each row, and the slopes of a few kv heads at a time.
struct WideMemory {
  SlopeTiles tiles;
  int64_t rows;      ///< rows of all heads, padded to tiles
  int64_t of_group;  ///< bytes of the slopes of one kv head
  int64_t groups;    ///< kv heads that are computed at a time; 0: the slopes of one do not fit

  WideMemory(const AttentionSize& n, bool causal, int64_t first_row)
      : tiles(n, causal, first_row), rows(n.b * n.heads() * tiles.query_tiles * 64) {
    of_group = n.r * tiles.all() * 64 * 64 * 2;
    const int64_t all = n.b * n.g, most = std::min(all, kMostSlopes / of_group);
    groups = most == 0 ? 0 : (all + (all + most - 1) / most - 1) / ((all + most - 1) / most);
  }
  int64_t rows_bytes() const { return (2 * 4 * rows + 255) / 256 * 256; }
  int64_t bytes() const { return rows_bytes() + groups * of_group; }
  /// Enough for any mask.
  static int64_t most_bytes(const AttentionSize& n) {
    const WideMemory full(n, false, 0);
    return full.rows_bytes() + std::min(n.b * n.g * full.of_group, kMostSlopes);
  }
};

inline constexpr int kOnePassRows = 64, kOnePassKeys = 128;  ///< rows of a tile of queries, and of a block of keys
inline constexpr int kLongestOnePass = 1 << 19;              ///< most queries and keys
/// The most memory of the gradient in one pass. Sequences of more than 65,536 rows need more than kMostGradWorkspace.
inline constexpr int64_t kMostOnePass = int64_t{4} << 30;

/// The memory of the gradient in one pass: two numbers of each row, counters, steps, the f32 sums of dq for a few kv
/// heads at a time, and those of dk and dv if the query heads of a kv head are divided into parts.
struct OnePassMemory {
  int64_t features;       ///< features of one head, rounded up to whole tiles
  int64_t tiles, blocks;  ///< numbers of tiles of queries, and of blocks of keys
  int64_t columns;        ///< blocks of threads for a kv head, which wait for each other and so run together
  int64_t heads, group;   ///< query heads of all samples, and of a kv head
  int64_t groups;         ///< kv heads at a time
  int64_t parts = 1;      ///< groups of the query heads of a kv head, each on its own multiprocessors

  OnePassMemory(const AttentionSize& n, bool causal)
      : features((n.d + 63) / 64 * 64),
        tiles((n.t + kOnePassRows - 1) / kOnePassRows),
        blocks((n.s + kOnePassKeys - 1) / kOnePassKeys),
        heads(n.b * n.heads()),
        group(n.r) {
    constexpr int64_t kMultiprocessors = 132;  // of an H100; others may use half of it meanwhile
    const auto divide = [](int64_t a, int64_t by) { return (a + by - 1) / by; };
    const int64_t passes = (causal ? 2 : 1) * divide(blocks, (causal ? 2 : 1) * (kMultiprocessors / 2));
    columns = divide(blocks, passes);
    const int64_t all = n.b * n.g, most = std::max<int64_t>(1, kMostGradWorkspace / tile_sums());
    groups = divide(all, divide(all, most));
    // The fewest parts that keep it busy, in rounds of its multiprocessors that take as long as a part has query heads.
    const auto time = [&](int64_t p) { return divide(groups * p * columns, kMultiprocessors) * (group / p); };
    for (int64_t p = 2; p <= group; ++p) {
      if (group % p == 0 && time(p) < time(parts) && groups * part_sums() * p <= kMostGradWorkspace) parts = p;
    }
    // Else half of the multiprocessors would have nothing to do.
    if (2 * groups * parts * columns <= kMultiprocessors && 2 * groups <= all) groups *= 2;
  }
  int64_t launches() const { return (heads / group + groups - 1) / groups; }
  int64_t rows_bytes() const { return round(heads * tiles * kOnePassRows * 2 * 4); }
  int64_t counters() const { return launches() + heads * tiles; }
  int64_t counters_bytes() const { return round(counters() * 4); }
  /// Pairs of a tile and a block of keys in order, 8 bytes each: whole packs.
  int64_t steps() const { return round(columns * ((blocks + columns - 1) / columns) * (group / parts) * tiles); }
  int64_t sums_bytes() const { return groups * tile_sums(); }
  int64_t bytes() const {
    return rows_bytes() + counters_bytes() + 8 * steps() + sums_bytes() +
           (parts > 1 ? groups * parts * part_sums() : 0);
  }

 private:
  static int64_t round(int64_t bytes) { return (bytes + 255) / 256 * 256; }
  /// Bytes per kv head: dq of its query heads, or dk and dv of a part.
  int64_t tile_sums() const { return group * tiles * kOnePassRows * features * 4; }
  int64_t part_sums() const { return 2 * blocks * kOnePassKeys * features * 4; }
};

/// Returns whether the gradient in one pass (attention_grad_one_pass_cuda.h) takes heads of this size, in as many
/// blocks as an int counts.
inline bool one_pass_takes(const AttentionSize& n) {
  constexpr int64_t kMost = int64_t{1} << 24;
  return n.d >= 64 && n.d <= 128 && n.d % 8 == 0 && n.e == n.d && n.t <= kLongestOnePass && n.s <= kLongestOnePass &&
         n.b * n.heads() * ((n.t + kOnePassRows - 1) / kOnePassRows) < kMost &&
         std::max(OnePassMemory(n, true).bytes(), OnePassMemory(n, false).bytes()) <= kMostOnePass;
}

}  // namespace trainctl
