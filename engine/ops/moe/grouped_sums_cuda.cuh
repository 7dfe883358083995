// sums_kernel: for each expert the sum over its rows of the outer products of two operands, by the tensor cores of
// Hopper (grouped_products_cuda.cu). A unit is two tiles of one expert's result; the terms are the expert's rows. The
// operand that is gathered by token has the lines of a tile, so that it is the smaller one to gather; the result may be
// transposed.
//
//   load_sums      the loading warps: SumsSteps finds the steps of the block's tiles, load_step fills a stage with each
//   compute_sums   two groups of warps: SumsReader (grouped_halves_cuda.cuh) multiplies the stages of a tile, and
//                  HalfOfSums writes one half of its sums while the tensor cores compute the other
#pragma once

#include "engine/ops/moe/grouped_halves_cuda.cuh"
#include "engine/ops/moe/grouped_results_cuda.cuh"

namespace trainctl::grouped {

/// The operands of sums_kernel. The lines of a tile are gathered by token; its columns are those of rows.
struct SumOverRows {
  CUtensorMap right;  ///< [rows, columns]
  CUtensorMap c;      ///< [experts, lines, columns], or [experts, columns, lines] if it is transposed
  const int *starts, *token_of;
  int experts, lines, columns;
  int line_pairs, column_tiles;
  const uint4* tokens;  ///< [tokens, lines]
  bf16* to;             ///< the matrix of c, if it is bf16
  bool adds;

  /// Steps of a tile whose expert has `rows` rows. Rows behind those are zeros.
  __device__ int steps(int rows) const {
    return rows == 0 && adds ? 0 : max(kHead + kTail, (rows + kTerms - 1) / kTerms);
  }
};

/// A tile of one expert's result, next to the tile of the other block of the pair.
struct SumsTile {
  int expert, line, column;

  SumsTile() = default;
  /// The tile of block `cta` of the pair. The units of an expert are numbered in groups, as in RowsTile.
  __device__ SumsTile(const SumOverRows& x, int unit, int cta) {
    const int units_of_expert = x.line_pairs * x.column_tiles, units_of_group = kPairsAtOnce * x.column_tiles;
    expert = unit / units_of_expert;
    const int group = unit % units_of_expert / units_of_group, in_group = unit % units_of_expert % units_of_group;
    const int pairs_of_group = min(kPairsAtOnce, x.line_pairs - group * kPairsAtOnce);
    line = (kPair * (group * kPairsAtOnce + in_group % pairs_of_group) + cta) * kLines;
    column = in_group / pairs_of_group * kColumns;
  }
  __device__ static int units(const SumOverRows& x) { return x.experts * x.line_pairs * x.column_tiles; }
};

/// Up to two steps of a tile. A loading thread gathers every 16th row of a step, from that of its number over 8 on; its
/// warp gathers 32 rows in both steps, whose tokens its lanes hold.
struct SumsPart {
  int row = 0, line = 0, column = 0, steps = 0;
  int token = -1;  ///< the token of one of the rows; -1: none
  int packs = -1;  ///< the number of packs of `tokens` before that token; -1: none

  static constexpr int kRowsOfThread = kTerms / 16, kSteps = 32 / (4 * kRowsOfThread);

  /// Waits for the token. Called before the next part is looked up: the compiler would wait for both at once.
  __device__ void find_packs(int packs_of_token) { packs = token < 0 ? -1 : token * packs_of_token; }
  /// The packs before row `i` of this thread in step `step`. Called by the whole warp.
  __device__ int packs_before(int step, int i) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    return __shfl_sync(~0u, packs, 4 * (kRowsOfThread * step + i) + lane / 8);
  }
  /// The row whose token this lane holds, after the first one.
  __device__ static int row_of_lane() {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    return kTerms * (lane / (4 * kRowsOfThread)) + 16 * (lane / 4 % kRowsOfThread) + 4 * warp + lane % 4;
  }
};

/// The steps of all tiles of a pair, one after another. Tokens are looked up two steps, and the rows of an expert a
/// tile, before they are needed, because a read from memory takes longer than a step.
struct SumsSteps {
  const SumOverRows& x;
  const int* starts;  ///< in shared memory
  int units, unit, row = 0, steps = 0, end = 0, next_row = 0, next_end = 0;
  SumsTile tile, next;

  __device__ SumsSteps(const SumOverRows& of, const int* first_rows, int all)
      : x(of), starts(first_rows), units(all), unit(static_cast<int>(blockIdx.x) / kPair), tile{}, next{} {
    look_ahead();
  }
  /// False after the last step.
  __device__ bool find(SumsPart& part) {
    while (steps == 0) {
      if (unit >= units) return false;
      tile = next, row = next_row, end = next_end, steps = x.steps(end - row);
      unit += static_cast<int>(gridDim.x) / kPair;
      look_ahead();
    }
    part.row = row, part.line = tile.line, part.column = tile.column, part.steps = min(SumsPart::kSteps, steps);
    const int mine = row + SumsPart::row_of_lane();
    part.token = mine < end ? x.token_of[mine] : -1;
    row += kTerms * part.steps, steps -= part.steps;
    return true;
  }

 private:
  __device__ void look_ahead() {
    if (unit >= units) return;
    next = SumsTile(x, unit, cta_in_pair());
    next_row = starts[next.expert], next_end = starts[next.expert + 1];
  }
};

/// Loads the terms of a step.
__device__ inline void load_step(const SumOverRows& x, Shared& shared, int stage, const SumsPart& part, int step) {
  const int cta = cta_in_pair(), thread = static_cast<int>(threadIdx.x);
  const int pack = thread % 8, packs = x.lines / 8;
  float* const barrier = shared.full[stage];
  if (thread == 0) {
    announce_bytes(barrier, kBBytes);
#pragma unroll
    for (int panel = cta; panel < kPanels; panel += kPair) {
      copy_box_3(shared.b[stage] + panel * kSquareBytes, x.right, part.column + 64 * panel, part.row + kTerms * step, 0,
                 barrier, true);
    }
  }
  __syncwarp();
  unsigned char* const a = shared.a[stage] + pack_at(thread / 8, pack);
  const int first = part.line / 8 + pack;
  const bool in_first = first < packs, in_second = first + 8 < packs;
#pragma unroll
  for (int i = 0; i < SumsPart::kRowsOfThread; ++i) {
    const int before = part.packs_before(step, i);
    const uint4* const from = x.tokens + max(before, 0);
    copy_pack(a + i * 16 * 128, from + (in_first ? first : 0), before >= 0 && in_first);
    copy_pack(a + i * 16 * 128 + kSquareBytes, from + (in_second ? first + 8 : 0), before >= 0 && in_second);
  }
  arrive_after_packs(barrier);
}

__device__ inline void load_sums(const SumOverRows& x, Shared& shared) {
  LoadStage at;
  SumsSteps steps(x, shared.tiles, SumsTile::units(x));
  SumsPart part, next;
  bool more = steps.find(part);
  part.find_packs(x.lines / 8);
  bool more_after = more && steps.find(next);
  while (more) {
    for (int step = 0; step < part.steps; ++step, at.next()) {
      at.wait(shared);
      load_step(x, shared, at.stage, part, step);
    }
    more = more_after;
    part = next;
    part.find_packs(x.lines / 8);
    more_after = more && steps.find(next);
  }
}

/// Sums of one half of the columns of a group of warps, on their way to memory, as they are or transposed.
template <bool Transposed, bool AsBf16>
struct HalfOfSums {
  const SumOverRows& x;
  const ResultsWriter& out;
  int expert, line, column;  ///< the place of the first sum of the group
  bool has_sums;             ///< if not, nothing is written

  /// Writes a part of the sums `d` of half `half`. All parts are written one after another.
  __device__ void write(float (&d)[128], int half, int part, int of) const {
    if constexpr (AsBf16)
      write_bf16(d, half, {part, of, kPanels / 2});
    else
      write_f32(d, half, {part, of, kColumns / 64});
  }

 private:
  __device__ void write_f32(const float (&d)[128], int half, PartOf panels) const {
#pragma unroll
    for (int i = panels.begin(); i < panels.end(); ++i) {
      const int panel = kColumns / 64 * half + i, at = column + 32 * panel;
      const auto put = [&](unsigned char* slot) {
        if constexpr (Transposed)
          out.put_transposed(slot, d + 16 * panel);
        else
          out.put(slot, d + 16 * panel);
      };
      out.panel(panel, put, [&](const unsigned char* slot) {
        if (!out.first || at >= x.columns || !has_sums) return;
        if constexpr (Transposed) {
          box(line, at, slot);
          if (line + 32 < x.lines) box(line + 32, at, slot + kSquareBytes / 2);
        } else {
          box(at, line, slot);
        }
      });
    }
  }
  __device__ void write_bf16(float (&d)[128], int half, PartOf panels) const {
#pragma unroll
    for (int i = panels.begin(); i < panels.end(); ++i) {
      const int panel = kPanels / 2 * half + i, at = column + 64 * panel;
      if (x.adds) add_memory(d, panel);
      const auto put = [&](unsigned char* slot) {
        if constexpr (Transposed)
          out.round_transposed(slot, d + 32 * panel);
        else
          out.round(slot, d + 32 * panel);
      };
      out.panel(panel, put, [&](const unsigned char* slot) {
        if (!out.first || at >= x.columns || !has_sums) return;
        box_to_memory<false>(x.c, Transposed ? line : at, Transposed ? at : line, expert, slot);
      });
    }
  }
  __device__ void box(int to_column, int to_line, const unsigned char* slot) const {
    if (x.adds)
      box_to_memory<true>(x.c, to_column, to_line, expert, slot);
    else
      box_to_memory<false>(x.c, to_column, to_line, expert, slot);
  }
  /// Numbers of bf16 are added before they are rounded.
  __device__ void add_memory(float (&d)[128], int panel) const {
    if (!has_sums) return;
#pragma unroll
    for (int i = 32 * panel; i < 32 * panel + 32; ++i) {
      const int line_of_sum = line + out.line() + 8 * (i / 2 % 2), at = column + 8 * (i / 4) + out.column() + i % 2;
      if (line_of_sum >= x.lines || at >= x.columns) continue;
      const int64_t in_expert = Transposed ? static_cast<int64_t>(at) * x.lines + line_of_sum
                                           : static_cast<int64_t>(line_of_sum) * x.columns + at;
      d[i] += __bfloat162float(x.to[static_cast<int64_t>(expert) * x.lines * x.columns + in_expert]);
    }
  }
};

/// Computes all tiles of this block, as a group of warps. It looks up a tile while the tensor cores finish the one
/// before, and writes half of the sums while they compute the other half, or the next tile.
template <bool Transposed, bool AsBf16>
__device__ void compute_sums(const SumOverRows& x, Shared& shared) {
  const int cta = cta_in_pair(), units = SumsTile::units(x), pairs = static_cast<int>(gridDim.x) / kPair;
  SumsReader reader{shared};
  const ResultsWriter out(shared);
  SumsTile next;
  int next_rows = 0;
  const auto look_up = [&](int unit) {
    if (unit >= units) return;
    next = SumsTile(x, unit, cta);
    next_rows = shared.tiles[next.expert + 1] - shared.tiles[next.expert];
  };
  float d[128];
  HalfOfSums<Transposed, AsBf16> previous{x, out, 0, 0, 0, false};  // its second half is still to be written
  int unit = static_cast<int>(blockIdx.x) / kPair;
  look_up(unit);
  for (; unit < units; unit += pairs) {
    const int steps = uniform(x.steps(next_rows));
    if (steps == 0) {
      look_up(unit + pairs);
      continue;
    }
    const HalfOfSums<Transposed, AsBf16> sums{
        x, out, uniform(next.expert), uniform(next.line) + 64 * out.group, uniform(next.column), true};
    reader.multiply(
        d, steps, [&](int part, int of) { previous.write(d, 1, part, of); },
        [&](int part, int of) { sums.write(d, 0, part, of); }, [&] { look_up(unit + pairs); });
    previous.expert = sums.expert, previous.line = sums.line, previous.column = sums.column, previous.has_sums = true;
  }
  previous.write(d, 1, 0, 1);
  if (out.first) boxes_done();
}

template <bool Transposed, bool AsBf16>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    sums_kernel(const __grid_constant__ SumOverRows x) {
  wait_for_kernel_before();
  let_next_kernel_start();
  Shared& shared = Shared::get();
  for (int e = static_cast<int>(threadIdx.x); e <= x.experts; e += kThreads) shared.tiles[e] = x.starts[e];
  prepare_pair(shared, true);
  if (group_of_warp() == 0) {
    give_registers<56>();
    load_sums(x, shared);
  } else {
    take_registers<224>();
    compute_sums<Transposed, AsBf16>(x, shared);
  }
  sync_pair();
}

}  // namespace trainctl::grouped
