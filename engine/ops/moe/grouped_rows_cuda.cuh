// rows_kernel: rows of several experts times the matrix of their expert, by the tensor cores of Hopper
// (grouped_products_cuda.cu). Its words are those of grouped_tiles_cuda.cuh; the lines of A are the rows.
//
// A unit is two consecutive tiles of 128 rows by 256 columns, one for each block of a pair. Pair number p of blocks
// computes the units p, p + pairs, p + 2 pairs, ... In each block, load_rows fills the stages, and two groups of warps
// read them in compute_rows: the first one computes the upper 64 rows of the tile, the second one the lower 64. Tiles
// begin at an expert's first row; a group without rows in a tile skips its terms.
#pragma once

#include "engine/ops/moe/expert_activation_cuda.cuh"
#include "engine/ops/moe/grouped_tiles_cuda.cuh"

namespace trainctl::grouped {

enum class Epilogue : uint8_t { plain, weighted, activated };

/// The operands of rows_kernel.
struct RowsProduct {
  CUtensorMap a;                  ///< [rows, terms], unless by token
  CUtensorMap b;                  ///< by lines: [experts, parts, columns, terms]; by terms: [experts, terms, columns]
  const int* starts;              ///< the first row of each expert, and the number of rows
  const int *token_of, *pair_of;  ///< the token of each row, and its (token, choice), by which weights are stored
  int experts, rows;
  int terms, columns, parts;  ///< columns of each part
  int column_tiles;
  const bf16* tokens;  ///< [tokens, terms]
  bf16* to;            ///< [rows, parts, columns]
  bf16* act_to;        ///< [rows, columns]
  Ref<Mixed> weights;
  ExpertActivation activation;

  /// With two parts, a tile has 128 columns of each.
  __device__ int columns_of_part() const { return parts == 2 ? kColumns / 2 : kColumns; }
};

/// Fills shared.tiles. Called by the whole block.
__device__ inline void find_tiles(Shared& shared, const int* starts, int experts) {
  if (threadIdx.x < 32) {
    const int lane = static_cast<int>(threadIdx.x);
    int before = 0;
    for (int first = 0; first < experts; first += 32) {
      const int e = first + lane;
      int sum = e < experts ? (starts[e + 1] - starts[e] + kLines - 1) / kLines : 0;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
      }
      if (e < experts) shared.tiles[e + 1] = before + sum;
      before += __shfl_sync(~0u, sum, 31);
    }
    if (lane == 0) shared.tiles[0] = 0;
  }
  __syncthreads();
}

/// A tile of a unit: `count` rows of one expert from row `first` on, and a tile of columns.
struct RowsTile {
  int expert, first, count, column_tile;
  bool shares;  ///< the other tile of the pair belongs to the same expert

  RowsTile() = default;
  /// The tile of block `cta` of the pair. Units are numbered group by group: a group has kPairsAtOnce pairs of tiles of
  /// rows (the last one has fewer), and all of these come before the next tile of columns. Called by whole warps.
  __device__ RowsTile(const RowsProduct& x, const Shared& shared, int unit, int cta) {
    const int all = shared.tiles[x.experts], pairs = (all + 1) / 2, units_of_group = kPairsAtOnce * x.column_tiles;
    const int group = unit / units_of_group, in_group = unit % units_of_group;
    const int pairs_of_group = min(kPairsAtOnce, pairs - group * kPairsAtOnce);
    const int tile = 2 * (group * kPairsAtOnce + in_group % pairs_of_group) + cta, other = tile ^ 1;
    column_tile = in_group / pairs_of_group;
    // A tile belongs to the last expert whose first tile is at or before it.
    int other_expert = -1;
    expert = -1;
    for (int first_expert = 0; first_expert < x.experts; first_expert += 32) {
      const int e = first_expert + static_cast<int>(threadIdx.x) % 32;
      const int first_tile = e < x.experts ? shared.tiles[e] : all;
      expert += __popc(__ballot_sync(~0u, e < x.experts && first_tile <= tile));
      other_expert += __popc(__ballot_sync(~0u, e < x.experts && first_tile <= other));
    }
    if (tile >= all) expert = other_expert;
    shares = other >= all || other_expert == expert;
    first = x.starts[expert] + (tile - shared.tiles[expert]) * kLines;
    count = tile < all ? min(kLines, x.starts[expert + 1] - first) : 0;
  }
  __device__ static int units(const RowsProduct& x, const Shared& shared) {
    return (shared.tiles[x.experts] + 1) / 2 * x.column_tiles;
  }
};

/// Loads this block's share of the tile of B: all of it, or, if both tiles of the unit need the same columns, the half
/// that it sends to both blocks. Called by one thread.
template <bool BByTerms>
__device__ void load_columns(const RowsProduct& x, const RowsTile& tile, unsigned char* b, int column, int step,
                             int cta, float* barrier) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (tile.shares && half != cta) continue;
    if constexpr (BByTerms) {
#pragma unroll
      for (int panel = 2 * half; panel < 2 * half + 2; ++panel)
        copy_box_3(b + panel * kSquareBytes, x.b, column + 64 * panel, step * kTerms, tile.expert, barrier,
                   tile.shares);
    } else {
      const int part = x.parts == 2 ? half : 0;
      copy_box_4(b + half * kBBytes / 2, x.b, step * kTerms, column + (half - part) * kColumns / 2, part, tile.expert,
                 barrier, tile.shares);
    }
  }
}

/// Loads the terms of all tiles of this block. It looks up a tile while it loads the one before.
template <bool ByToken, bool BByTerms>
__device__ void load_rows(const RowsProduct& x, Shared& shared, int units) {
  const int cta = cta_in_pair(), thread = static_cast<int>(threadIdx.x);
  const int pack = thread % 8, line = thread / 8, steps = (x.terms + kTerms - 1) / kTerms, packs = x.terms / 8;
  const int pairs = static_cast<int>(gridDim.x) / 2;
  int unit = static_cast<int>(blockIdx.x) / 2;
  if (unit >= units) return;
  LoadStage at;
  RowsTile next(x, shared, unit, cta);
  int tokens[kLines / 16];
  const auto find_tokens = [&] {
    if constexpr (ByToken) {
#pragma unroll
      for (int i = 0; i < kLines / 16; ++i) {
        const int row = line + 16 * i;
        tokens[i] = row < next.count ? x.token_of[next.first + row] : -1;
      }
    }
  };
  find_tokens();
  for (; unit < units; unit += pairs) {
    const RowsTile tile = next;
    unsigned packs_before[kLines / 16];  // those of `tokens` before the row
    unsigned has_token = 0;              // a bit for each of these rows
    if constexpr (ByToken) {
#pragma unroll
      for (int i = 0; i < kLines / 16; ++i) {
        packs_before[i] = tokens[i] < 0 ? 0 : static_cast<unsigned>(tokens[i] * packs);
        has_token |= (tokens[i] < 0 ? 0u : 1u) << i;
      }
    }
    const int column = tile.column_tile * x.columns_of_part();
    for (int step = 0; step < steps; ++step, at.next()) {
      at.wait(shared);
      float* const barrier = shared.full[at.stage];
      if (thread == 0) {
        announce_bytes(barrier, kBBytes + (ByToken ? 0 : kABytes));
        if constexpr (!ByToken) copy_box_3(shared.a[at.stage], x.a, step * kTerms, tile.first, 0, barrier, false);
        load_columns<BByTerms>(x, tile, shared.b[at.stage], column, step, cta, barrier);
      }
      if constexpr (ByToken) {
        const int next_pack = step * (kTerms / 8) + pack;
        // Beyond the end of a row, the address is that of `tokens`, which is not read.
        const auto* const of_first_token = reinterpret_cast<const uint4*>(x.tokens) + next_pack;
        unsigned char* const a = shared.a[at.stage] + pack_at(line, pack);
#pragma unroll
        for (int i = 0; i < kLines / 16; ++i)
          copy_pack(a + i * 16 * 128,
                    of_first_token + (next_pack < packs ? packs_before[i] : 0u) - (next_pack < packs ? 0 : next_pack),
                    (has_token >> i & 1) != 0 && next_pack < packs);
        arrive_after_packs(barrier);
      }
      if (unit + pairs >= units) continue;
      if (step == min(1, steps - 1)) {
        __syncwarp();
        next = RowsTile(x, shared, unit + pairs, cta);
      }
      if (step == min(2, steps - 1)) find_tokens();
    }
  }
}

/// Arranges the results of a warp, 16 lines of its group's 64 x 256, in shared memory, panel by panel of 64 columns, so
/// that it writes whole lines of 128 bytes. No thread waits for these writes.
struct RowsWriter {
  unsigned char* slots[kSlots];
  int group, warp, lane;

  __device__ explicit RowsWriter(Shared& shared)
      : group(group_of_warp() - 1),
        warp(static_cast<int>(threadIdx.x) / 32 % 4),
        lane(static_cast<int>(threadIdx.x) % 32) {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) slots[i] = shared.out[group][i] + warp * kSquareBytes / 4;
  }
  /// The first of this thread's two lines of the group's sums; the other is 8 lines below.
  __device__ int line() const { return 16 * warp + lane / 4; }
  /// The line of the warp, and the pack, that this thread writes first; the others are kLinesApart lines below one
  /// another.
  __device__ int first_line() const { return lane / 8; }
  __device__ int pack() const { return lane % 8; }
  static constexpr int kLinesApart = 4;
  __device__ uint4 numbers(const unsigned char* slot, int i) const {
    return *reinterpret_cast<const uint4*>(slot + pack_at(first_line() + kLinesApart * i, pack()));
  }

  /// Puts the sums of a panel into a slot as bf16, times a weight of each line; `d`: the first of them.
  __device__ void round(unsigned char* slot, const float* d, const float (&weights)[2]) const {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
    const unsigned line = shared_address(slot) + pack_at(lane % 16, lane / 16);
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      unsigned pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        pairs[i] = pair_of(weights[i % 2] * d[8 * block + 2 * i], weights[i % 2] * d[8 * block + 2 * i + 1]);
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(line ^ (32 * block)),
                   "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                   : "memory");
    }
#endif
  }
};

/// 16 bytes to memory. The compiler keeps the order of such writes: it takes too many registers to change it.
__device__ inline void write_pack(bf16* to, const uint4& numbers) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(numbers.x), "r"(numbers.y), "r"(numbers.z),
               "r"(numbers.w)
               : "memory");
}

/// Writes panels of 64 columns of bf16 results of a warp.
struct RowsResults {
  bf16* to;
  int columns;

  /// The warp's lines of a panel that begins at `column`. The group has `rows` rows, from row `first` on.
  __device__ void write(const RowsWriter& out, int panel, const float* d, const float (&weights)[2], int column,
                        int first, int rows) const {
    const int row = 16 * out.warp + out.first_line(), at = column + 8 * out.pack();
    const int left = at < columns ? rows - row : 0, stride = out.kLinesApart * columns;
    bf16* const first_pack = to + static_cast<int64_t>(first + row) * columns + at;
    unsigned char* const slot = out.slots[panel % kSlots];
    out.round(slot, d, weights);
    __syncwarp();
    uint4 numbers[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) numbers[i] = out.numbers(slot, i);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (i * out.kLinesApart < left) write_pack(first_pack + i * stride, numbers[i]);
  }
};

/// act(gate), times `other` if the function is gated, for 8 numbers each.
template <ExpertActivation A>
__device__ uint4 activated(const uint4& gate, const uint4& other) {
  float g[8], o[8];
  eight(gate, g);
  eight(other, o);
  unsigned pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    pairs[i] = pair_of(activated_pair<A>(g[2 * i], o[2 * i]).a, activated_pair<A>(g[2 * i + 1], o[2 * i + 1]).a);
  return {pairs[0], pairs[1], pairs[2], pairs[3]};
}
__device__ inline uint4 activated(ExpertActivation activation, const uint4& gate, const uint4& other) {
  switch (activation) {
    case ExpertActivation::clamped_swiglu:
      return activated<ExpertActivation::clamped_swiglu>(gate, other);
    case ExpertActivation::swiglu:
      return activated<ExpertActivation::swiglu>(gate, other);
    case ExpertActivation::geglu:
      return activated<ExpertActivation::geglu>(gate, other);
    case ExpertActivation::silu:
      return activated<ExpertActivation::silu>(gate, other);
    case ExpertActivation::gelu:
      return activated<ExpertActivation::gelu>(gate, other);
    default:
      return activated<ExpertActivation::relu>(gate, other);
  }
}

/// Writes u and a = act(u) for the results of a warp, u rounded. Two panels are in shared memory at once: those of the
/// same columns of both parts, or with one part the first and the second 128 columns.
__device__ inline void write_activated(const RowsProduct& x, const RowsWriter& out, const float (&d)[128], int column,
                                       int first, int rows) {
  const float ones[2] = {1, 1};
  const bool gated = x.parts == 2;
  const int line = out.first_line(), pack = out.pack(), row = 16 * out.warp + line;
  const int64_t place = first + row;
#pragma unroll
  for (int panel = 0; panel < 2; ++panel) {
    __syncwarp();
    out.round(out.slots[0], d + 32 * panel, ones);
    out.round(out.slots[1], d + 32 * (panel + 2), ones);
    __syncwarp();
    const int at = column + 64 * panel + 8 * pack, at_other = gated ? at : at + kColumns / 2;
    const int left = at < x.columns ? rows - row : 0, left_other = at_other < x.columns ? rows - row : 0;
    bf16 *u = x.to + place * x.parts * x.columns + at,
         *u_other = x.to + (place * x.parts + x.parts - 1) * x.columns + at_other,
         *a = x.act_to + place * x.columns + at;
    const int stride = out.kLinesApart * x.columns;
#pragma unroll 2
    for (int i = 0; i < 4; ++i, u += stride * x.parts, u_other += stride * x.parts, a += stride) {
      const uint4 gate = out.numbers(out.slots[0], i), other = out.numbers(out.slots[1], i);
      if (out.kLinesApart * i < left) {
        write_pack(u, gate);
        write_pack(a, activated(x.activation, gate, other));
      }
      if (out.kLinesApart * i < left_other) {
        write_pack(u_other, other);
        if (!gated) write_pack(a + kColumns / 2, activated(x.activation, other, other));
      }
    }
  }
}

/// Computes all tiles of this block, as a group of warps. It looks up a tile while the tensor cores finish the one
/// before.
template <bool ByToken, bool BByTerms, Epilogue E>
__device__ void compute_rows(const RowsProduct& x, Shared& shared, int units) {
  const int cta = cta_in_pair(), steps = (x.terms + kTerms - 1) / kTerms, pairs = static_cast<int>(gridDim.x) / 2;
  RowsReader<BByTerms, ByToken> reader{shared};
  const RowsWriter out(shared);
  RowsTile next;
  int next_pairs[2];
  const auto look_up = [&](int unit) {
    if (unit >= units) return;
    next = RowsTile(x, shared, unit, cta);
    if constexpr (E == Epilogue::weighted) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = 64 * out.group + out.line() + 8 * h;
        next_pairs[h] = row < next.count ? x.pair_of[next.first + row] : -1;
      }
    }
  };
  float d[128];
  int unit = static_cast<int>(blockIdx.x) / 2;
  look_up(unit);
  for (; unit < units; unit += pairs) {
    const RowsTile tile = next;
    const int first = tile.first + 64 * out.group, rows = min(64, tile.count - 64 * out.group);
    if (rows <= 0) {
      reader.skip(steps);
      look_up(unit + pairs);
      continue;
    }
    float weights[2] = {1, 1};
    reader.multiply(d, steps, [&] {
      if constexpr (E == Epilogue::weighted) {
#pragma unroll
        for (int h = 0; h < 2; ++h)
          if (next_pairs[h] >= 0) weights[h] = value(x.weights, next_pairs[h]);
      }
      look_up(unit + pairs);
    });
    const int column = tile.column_tile * x.columns_of_part();
    if constexpr (E == Epilogue::activated) {
      write_activated(x, out, d, column, first, rows);
    } else {
      const RowsResults results{x.to, x.columns};
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel)
        results.write(out, panel, d + 32 * panel, weights, column + 64 * panel, first, rows);
    }
  }
}

template <bool ByToken, bool BByTerms, Epilogue E>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    rows_kernel(const __grid_constant__ RowsProduct x) {
  wait_for_kernel_before();
  let_next_kernel_start();
  Shared& shared = Shared::get();
  prepare_pair(shared, ByToken);
  find_tiles(shared, x.starts, x.experts);
  const int units = RowsTile::units(x, shared);
  if (group_of_warp() == 0) {
    give_registers<56>();
    if (ByToken || threadIdx.x < 32) load_rows<ByToken, BByTerms>(x, shared, units);
    __syncwarp();
  } else {
    take_registers<224>();
    compute_rows<ByToken, BByTerms, E>(x, shared, units);
  }
  sync_pair();
}

}  // namespace trainctl::grouped
