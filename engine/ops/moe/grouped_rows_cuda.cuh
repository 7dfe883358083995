// rows_kernel: rows of several experts times the matrix of their expert, by the tensor cores of Hopper
// (grouped_products_cuda.cu). A unit is two consecutive tiles of 128 rows by 256 columns. Tiles begin at an expert's
// first row; a group of warps without rows only lets the terms pass.
#pragma once

#include "engine/ops/moe/expert_activation_cuda.cuh"
#include "engine/ops/moe/grouped_tiles_cuda.cuh"

namespace trainctl::grouped {

enum class Epilogue : uint8_t { plain, weighted, activated };

/// The operands of rows_kernel.
struct RowsProduct {
  CUtensorMap a;    ///< [rows, terms], unless by token
  CUtensorMap b;    ///< by lines: [experts, parts, columns, terms]; by terms: [experts, terms, columns]
  CUtensorMap c;    ///< [rows, parts, columns]
  CUtensorMap act;  ///< [rows, 1, columns]
  const int *starts, *token_of, *pair_of;
  int experts, rows;
  int terms, columns, parts;  ///< columns of each part
  int column_tiles;
  const bf16* tokens;  ///< [tokens, terms]
  bf16 *to, *act_to;   ///< matrices of c and act
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
  bool shares;  ///< the other tile of the pair is of the same expert

  __device__ RowsTile(const RowsProduct& x, const Shared& shared, int unit, int place) {
    const int all = shared.tiles[x.experts], pairs = (all + 1) / 2, of_group = kPairsAtOnce * x.column_tiles;
    const int group = unit / of_group, at = unit % of_group;
    const int beside = min(kPairsAtOnce, pairs - group * kPairsAtOnce);
    const int tile = 2 * (group * kPairsAtOnce + at % beside) + place, other = tile ^ 1;
    column_tile = at / beside;
    const int its = other < all ? expert_of(shared, x.experts, other) : -1;
    expert = tile < all ? expert_of(shared, x.experts, tile) : its;
    shares = its < 0 || its == expert;
    first = x.starts[expert] + (tile - shared.tiles[expert]) * kLines;
    count = tile < all ? min(kLines, x.starts[expert + 1] - first) : 0;
  }
  __device__ static int units(const RowsProduct& x, const Shared& shared) {
    return (shared.tiles[x.experts] + 1) / 2 * x.column_tiles;
  }

 private:
  /// The last expert whose first tile is not behind this one.
  __device__ static int expert_of(const Shared& shared, int experts, int tile) {
    int low = 0, high = experts - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (shared.tiles[middle] <= tile)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
};

template <bool ByToken, bool BByTerms>
__device__ void load_rows(const RowsProduct& x, Shared& shared, int units) {
  const int place = place_in_pair(), thread = static_cast<int>(threadIdx.x);
  const int pack = thread % 8, line = thread / 8, steps = (x.terms + kTerms - 1) / kTerms, packs = x.terms / 8;
  TermsPlace at;
  for (int unit = static_cast<int>(blockIdx.x) / 2; unit < units; unit += static_cast<int>(gridDim.x) / 2) {
    const RowsTile tile(x, shared, unit, place);
    unsigned from[kLines / 16];  // packs before the row
    unsigned there = 0;
    if constexpr (ByToken) {
#pragma unroll
      for (int i = 0; i < kLines / 16; ++i) {
        const int row = line + 16 * i;
        from[i] = row < tile.count ? static_cast<unsigned>(x.token_of[tile.first + row] * packs) : 0;
        there |= (row < tile.count ? 1u : 0u) << i;
      }
    }
    const int column = tile.column_tile * x.columns_of_part();
    for (int step = 0; step < steps; ++step, at.next()) {
      at.wait(shared);
      float* const here = shared.here[at.stage];
      if (thread == 0) {
        announce_bytes(here, kBBytes + (ByToken ? 0 : kABytes));
        if constexpr (!ByToken) copy_box_3(shared.a[at.stage], x.a, step * kTerms, tile.first, 0, here, false);
        unsigned char* const b = shared.b[at.stage];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (tile.shares && half != place) continue;
          if constexpr (BByTerms) {
#pragma unroll
            for (int panel = 2 * half; panel < 2 * half + 2; ++panel)
              copy_box_3(b + panel * kSquareBytes, x.b, column + 64 * panel, step * kTerms, tile.expert, here,
                         tile.shares);
          } else {
            const int part = x.parts == 2 ? half : 0;
            copy_box_4(b + half * kBBytes / 2, x.b, step * kTerms, column + (half - part) * kColumns / 2, part,
                       tile.expert, here, tile.shares);
          }
        }
      }
      if constexpr (ByToken) {
        const int next = step * (kTerms / 8) + pack;
        const auto* const tokens = reinterpret_cast<const uint4*>(x.tokens) + next;
        unsigned char* const a = shared.a[at.stage] + pack_at(line, pack);
#pragma unroll
        for (int i = 0; i < kLines / 16; ++i)
          copy_pack(a + i * 16 * 128, tokens + (next < packs ? from[i] : 0u) - (next < packs ? 0 : next),
                    (there >> i & 1) != 0 && next < packs);
        arrive_after_packs(here);
      }
    }
  }
}

/// Writes panels of 64 columns of bf16 results of a group of warps.
struct RowsResults {
  const CUtensorMap& map;
  bf16* to;
  int columns, parts;  ///< sizes of a row of the matrix

  /// The first `rows` lines of a panel that begins at `column` of `part`, from row `first` on.
  __device__ void write(const ResultsWriter& out, const unsigned char* slot, int part, int column, int first,
                        int rows) const {
    if (column >= columns) return;
    if (rows >= 64) {
      if (out.first) box_to_memory<false>(map, column, part, first, slot);
      return;
    }
    for (int i = 32 * out.warp + out.lane; i < 8 * rows; i += kGroupThreads) {
      const int row = i / 8, pack = i % 8;
      if (column + 8 * pack >= columns) continue;
      const int64_t at = (static_cast<int64_t>(first + row) * parts + part) * columns + column + 8 * pack;
      *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(slot + pack_at(row, pack));
    }
  }
};

/// a = act(u) for the results of a group of warps, u rounded; `d` becomes a, in its first half if there are two parts.
template <ExpertActivation A>
__device__ void activate(float (&d)[128]) {
  const auto round = [](float v) { return __bfloat162float(__float2bfloat16_rn(v)); };
#pragma unroll
  for (int i = 0; i < (is_gated(A) ? 64 : 128); ++i) {
    d[i] = activated_pair<A>(round(d[i]), round(d[(i + 64) % 128])).a;
  }
}
__device__ inline void activate(ExpertActivation activation, float (&d)[128]) {
  switch (activation) {
    case ExpertActivation::clamped_swiglu:
      return activate<ExpertActivation::clamped_swiglu>(d);
    case ExpertActivation::swiglu:
      return activate<ExpertActivation::swiglu>(d);
    case ExpertActivation::geglu:
      return activate<ExpertActivation::geglu>(d);
    case ExpertActivation::silu:
      return activate<ExpertActivation::silu>(d);
    case ExpertActivation::gelu:
      return activate<ExpertActivation::gelu>(d);
    case ExpertActivation::relu:
      return activate<ExpertActivation::relu>(d);
  }
}

template <bool ByToken, bool BByTerms, Epilogue E>
__device__ void compute_rows(const RowsProduct& x, Shared& shared, int units) {
  const int place = place_in_pair(), steps = (x.terms + kTerms - 1) / kTerms;
  TermsReader<0, BByTerms, ByToken> reader{shared};
  const ResultsWriter out(shared);
  float d[128];
  for (int unit = static_cast<int>(blockIdx.x) / 2; unit < units; unit += static_cast<int>(gridDim.x) / 2) {
    const RowsTile tile(x, shared, unit, place);
    const int first = tile.first + 64 * out.group, rows = min(64, tile.count - 64 * out.group);
    if (rows <= 0) {
      reader.pass(steps);
      continue;
    }
    float weights[2] = {1, 1};
    if constexpr (E == Epilogue::weighted) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (out.line() + 8 * h < rows) weights[h] = value(x.weights, x.pair_of[first + out.line() + 8 * h]);
    }
#pragma unroll
    for (float& v : d) v = 0;
    reader.add(d, steps);
    const int column = tile.column_tile * x.columns_of_part();
    const RowsResults results{x.c, x.to, x.columns, x.parts};
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const int part = x.parts == 2 ? panel / 2 : 0;
      out.panel(
          panel, [&](unsigned char* slot) { out.round(slot, d + 32 * panel, weights); },
          [&](const unsigned char* slot) {
            results.write(out, slot, part, column + 64 * (panel - 2 * part), first, rows);
          });
    }
    if constexpr (E == Epilogue::activated) {
      activate(x.activation, d);
      const int panels = x.columns_of_part() / 64;
      const RowsResults activations{x.act, x.act_to, x.columns, 1};
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        if (panel >= panels) break;
        out.panel(
            panel, [&](unsigned char* slot) { out.round(slot, d + 32 * panel, weights); },
            [&](const unsigned char* slot) { activations.write(out, slot, 0, column + 64 * panel, first, rows); });
      }
    }
  }
  if (out.first) boxes_done();
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
    if (ByToken || threadIdx.x == 0) load_rows<ByToken, BByTerms>(x, shared, units);
    __syncwarp();
  } else {
    take_registers<224>();
    compute_rows<ByToken, BByTerms, E>(x, shared, units);
  }
  sync_pair();
}

}  // namespace trainctl::grouped
