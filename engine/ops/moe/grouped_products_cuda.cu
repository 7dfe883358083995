// See the header. Each kernel is started once for all multiprocessors; its pairs of blocks take units, two tiles each,
// in an order in which those that run at once share rows and columns, which then come from the L2 cache:
//
//   rows_kernel   a unit is two consecutive tiles of 128 rows by 256 columns. Tiles begin at an expert's first row; a
//                 group of warps without rows only lets the terms pass
//   sums_kernel   a unit is two tiles of one expert's result; the terms are its rows. The operand by token has the
//                 lines of a tile, so that it is the smaller one to gather; the result may be transposed
//
// Operands by token are gathered by the loading warps, 16 bytes at a time; the copy engine loads the others.
#include "engine/ops/cuda/driver_function_cuda.h"
#include "engine/ops/moe/expert_activation_cuda.cuh"
#include "engine/ops/moe/grouped_products_cuda.h"
#include "engine/ops/moe/grouped_tiles_cuda.cuh"

namespace trainctl::grouped {
namespace {

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
__device__ void find_tiles(Shared& shared, const int* starts, int experts) {
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

/// Barriers of both blocks. `packs`: all loading threads note their packs.
__device__ void prepare_pair(Shared& shared, bool packs) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(shared.here[i], 1 + (packs ? kGroupThreads : 0));
      init_barrier(shared.left[i], kPair * kComputingWarps);
    }
    publish_barriers();
    publish_to_copies();
  }
  meet_pair();
}

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
        note_packs(here);
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
__device__ void activate(ExpertActivation activation, float (&d)[128]) {
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
  meet_pair();
}

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
};

/// A tile of one expert's result, beside that of the other block of the pair.
struct SumsTile {
  int expert, line, column;

  SumsTile() = default;
  __device__ SumsTile(const SumOverRows& x, int unit, int place) {
    const int of_expert = x.line_pairs * x.column_tiles, of_group = kPairsAtOnce * x.column_tiles;
    expert = unit / of_expert;
    const int group = unit % of_expert / of_group, at = unit % of_expert % of_group;
    const int beside = min(kPairsAtOnce, x.line_pairs - group * kPairsAtOnce);
    line = (2 * (group * kPairsAtOnce + at % beside) + place) * kLines;
    column = at / beside * kColumns;
  }
  __device__ static int units(const SumOverRows& x) { return x.experts * x.line_pairs * x.column_tiles; }
};

/// The rows of a step of a tile, of which a thread gathers every 16th.
struct SumsStep {
  int row = 0, line = 0, column = 0;
  int tokens[4];  ///< tokens of the thread's rows; -1: none
};

/// The steps of all tiles of a pair, one after another. They are looked up two steps ahead, and the rows of an expert a
/// tile ahead, because each takes as long as a step.
struct SumsSteps {
  const SumOverRows& x;
  int units, unit, row = 0, end = 0, next_row = 0, next_end = 0;
  SumsTile tile, next;

  __device__ SumsSteps(const SumOverRows& of, int all)
      : x(of), units(all), unit(static_cast<int>(blockIdx.x) / 2), tile{}, next{} {
    look_ahead();
  }
  /// False if there is no further step.
  __device__ bool find(SumsStep& step) {
    while (row >= end) {
      if (unit >= units) return false;
      tile = next, row = next_row, end = next_end;
      unit += static_cast<int>(gridDim.x) / 2;
      look_ahead();
    }
    step.row = row, step.line = tile.line, step.column = tile.column;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int mine = row + static_cast<int>(threadIdx.x) / 8 + 16 * i;
      step.tokens[i] = mine < end ? x.token_of[mine] : -1;
    }
    row += kTerms;
    return true;
  }

 private:
  __device__ void look_ahead() {
    if (unit >= units) return;
    next = SumsTile(x, unit, place_in_pair());
    next_row = x.starts[next.expert], next_end = x.starts[next.expert + 1];
  }
};

__device__ void load_sums(const SumOverRows& x, Shared& shared) {
  const int place = place_in_pair(), thread = static_cast<int>(threadIdx.x);
  const int pack = thread % 8, packs = x.lines / 8;
  TermsPlace at;
  SumsSteps steps(x, SumsTile::units(x));
  SumsStep step, next;
  bool more = steps.find(step), more_behind = more && steps.find(next);
  for (; more; at.next()) {
    at.wait(shared);
    float* const here = shared.here[at.stage];
    if (thread == 0) {
      announce_bytes(here, kBBytes);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int panel = 2 * place + half;
        copy_box_3(shared.b[at.stage] + panel * kSquareBytes, x.right, step.column + 64 * panel, step.row, 0, here,
                   true);
      }
    }
    unsigned char* const a = shared.a[at.stage] + pack_at(thread / 8, pack);
    const int first = step.line / 8 + pack;
    const bool in_first = first < packs, in_second = first + 8 < packs;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool there = step.tokens[i] >= 0;
      const uint4* const from = x.tokens + static_cast<int64_t>(max(step.tokens[i], 0)) * packs;
      copy_pack(a + i * 16 * 128, from + (in_first ? first : 0), there && in_first);
      copy_pack(a + i * 16 * 128 + kSquareBytes, from + (in_second ? first + 8 : 0), there && in_second);
    }
    note_packs(here);
    more = more_behind;
    step = next;
    more_behind = more && steps.find(next);
  }
}

/// Writes the sums of a group of warps, as they are or transposed.
template <bool Transposed>
struct SumsResults {
  const SumOverRows& x;
  const SumsTile& tile;
  const ResultsWriter& out;
  int line;  ///< line of the group's first sums

  __device__ void write_f32(const float (&d)[128]) const {
#pragma unroll
    for (int panel = 0; panel < kColumns / 32; ++panel) {
      const int column = tile.column + 32 * panel;
      const auto put = [&](unsigned char* slot) {
        if constexpr (Transposed)
          out.put_transposed(slot, d + 16 * panel);
        else
          out.put(slot, d + 16 * panel);
      };
      out.panel(panel, put, [&](const unsigned char* slot) {
        if (!out.first || column >= x.columns) return;
        if constexpr (Transposed) {
          box(line, column, slot);
          if (line + 32 < x.lines) box(line + 32, column, slot + kSquareBytes / 2);
        } else {
          box(column, line, slot);
        }
      });
    }
  }
  __device__ void write_bf16(float (&d)[128]) const {
    if (x.adds) add_memory(d);
    const float ones[2] = {1, 1};
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const int column = tile.column + 64 * panel;
      const auto put = [&](unsigned char* slot) {
        if constexpr (Transposed)
          out.round_transposed(slot, d + 32 * panel);
        else
          out.round(slot, d + 32 * panel, ones);
      };
      out.panel(panel, put, [&](const unsigned char* slot) {
        if (!out.first || column >= x.columns) return;
        box_to_memory<false>(x.c, Transposed ? line : column, Transposed ? column : line, tile.expert, slot);
      });
    }
  }

 private:
  __device__ void box(int to_column, int to_line, const unsigned char* slot) const {
    if (x.adds)
      box_to_memory<true>(x.c, to_column, to_line, tile.expert, slot);
    else
      box_to_memory<false>(x.c, to_column, to_line, tile.expert, slot);
  }
  /// Numbers of bf16 are added before they are rounded.
  __device__ void add_memory(float (&d)[128]) const {
#pragma unroll
    for (int i = 0; i < 128; ++i) {
      const int its_line = line + out.line() + 8 * (i / 2 % 2),
                column = tile.column + 8 * (i / 4) + out.column() + i % 2;
      if (its_line >= x.lines || column >= x.columns) continue;
      const int64_t in_expert = Transposed ? static_cast<int64_t>(column) * x.lines + its_line
                                           : static_cast<int64_t>(its_line) * x.columns + column;
      d[i] += __bfloat162float(x.to[static_cast<int64_t>(tile.expert) * x.lines * x.columns + in_expert]);
    }
  }
};

template <bool Transposed>
__device__ void compute_sums(const SumOverRows& x, Shared& shared) {
  const int place = place_in_pair(), units = SumsTile::units(x);
  TermsReader<1, 1, true> reader{shared};
  const ResultsWriter out(shared);
  float d[128];
  for (int unit = static_cast<int>(blockIdx.x) / 2; unit < units; unit += static_cast<int>(gridDim.x) / 2) {
    const SumsTile tile(x, unit, place);
    const int rows = x.starts[tile.expert + 1] - x.starts[tile.expert];
    const int line = tile.line + 64 * out.group, steps = (rows + kTerms - 1) / kTerms;
    if (line >= x.lines) {
      reader.pass(steps);
      continue;
    }
#pragma unroll
    for (float& v : d) v = 0;
    reader.add(d, steps);
    if (rows == 0 && x.adds) continue;
    const SumsResults<Transposed> results{x, tile, out, line};
    if (x.to == nullptr)
      results.write_f32(d);
    else
      results.write_bf16(d);
  }
  if (out.first) boxes_done();
}

template <bool Transposed>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    sums_kernel(const __grid_constant__ SumOverRows x) {
  wait_for_kernel_before();
  let_next_kernel_start();
  Shared& shared = Shared::get();
  prepare_pair(shared, true);
  if (group_of_warp() == 0) {
    give_registers<56>();
    load_sums(x, shared);
  } else {
    take_registers<224>();
    compute_sums<Transposed>(x, shared);
  }
  meet_pair();
}

// Launchers

/// The copy engine's description of a matrix of up to four dims, the innermost first, in boxes whose lines have 128
/// bytes.
template <size_t N>
bool describe(CUtensorMap& to, const void* data, bool f32, const int64_t (&sizes)[N], const int (&box)[N]) {
  const auto encode = driver_function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  if (encode == nullptr) return false;
  cuuint64_t counts[N], steps[N];
  cuuint32_t boxes[N], every[N];
  int64_t bytes = f32 ? 4 : 2;
  for (size_t i = 0; i < N; ++i) {
    counts[i] = static_cast<cuuint64_t>(std::max<int64_t>(1, sizes[i]));
    bytes *= sizes[i];
    steps[i] = static_cast<cuuint64_t>(bytes);
    boxes[i] = static_cast<cuuint32_t>(box[i]);
    every[i] = 1;
  }
  return encode(&to, f32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, N,
                const_cast<void*>(data), counts, steps, boxes, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
void described(bool is) { check(is, "moe: the copy engine does not take an operand"); }

/// An even number of blocks, at most one for each multiprocessor.
unsigned blocks_of_pairs(int64_t pairs) {
  return static_cast<unsigned>(std::max<int64_t>(1, std::min<int64_t>(pairs, multiprocessors() / 2)) * 2);
}

template <class Kernel, class Operands>
void run(Kernel* kernel, const Operands& x, int64_t pairs, CudaStream stream) {
  launch(kernel, blocks_of_pairs(pairs), kThreads, Shared::bytes(), stream, "experts", x);
}

RowsProduct rows_product(const Rows& rows, const Operand& a, int64_t columns, int64_t parts, void* to) {
  RowsProduct x{};
  x.starts = rows.starts, x.token_of = rows.token_of, x.pair_of = rows.pair_of;
  x.experts = static_cast<int>(rows.experts), x.rows = static_cast<int>(rows.rows);
  x.terms = static_cast<int>(a.width), x.columns = static_cast<int>(columns), x.parts = static_cast<int>(parts);
  x.column_tiles = static_cast<int>(ceil_div(columns, parts == 2 ? kColumns / 2 : kColumns));
  x.to = static_cast<bf16*>(to);
  described(describe<3>(x.c, to, false, {columns, parts, rows.rows}, {64, 1, 64}));
  if (a.by_token)
    x.tokens = static_cast<const bf16*>(a.data);
  else
    described(describe(x.a, a.data, false, {a.width, rows.rows, 1}, {kTerms, kLines, 1}));
  return x;
}

/// Pairs of tiles of all experts, at most.
int64_t pairs_of(const RowsProduct& x) { return ceil_div(int64_t{x.rows} / kLines + x.experts, 2) * x.column_tiles; }

}  // namespace

bool applies(const ExpertsSize& n, const void* x) {
  constexpr int64_t kMost = int64_t{1} << 30;
  if (n.features % 8 != 0 || n.hidden % 8 != 0 || n.experts > kMostExperts || !is_hopper()) return false;
  if (n.rows < 1 || n.tokens * n.top_k >= kMost || n.tokens * (n.features / 8) >= kMost) return false;
  const int64_t tiles = n.rows / kLines + n.experts;
  if (tiles * ceil_div(std::max(n.features, n.inner()), kColumns) >= kMost) return false;
  CUtensorMap map;  // the emulated GPU of the tests does not take three dims
  if (!describe(map, x, false, {n.features, n.tokens, 1}, {64, 1, 1})) return false;
  const auto allow = [](auto* kernel) {
    cuda_check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(Shared::bytes())),
        "experts");
  };
  allow(rows_kernel<true, false, Epilogue::activated>);
  allow(rows_kernel<false, false, Epilogue::weighted>);
  allow(rows_kernel<true, true, Epilogue::plain>);
  allow(rows_kernel<false, true, Epilogue::plain>);
  allow(sums_kernel<false>);
  allow(sums_kernel<true>);
  return true;
}

void up_product(CudaStream stream, const Rows& rows, const ExpertsSize& n, ExpertActivation activation, const void* x,
                const void* up, void* u, void* a) {
  RowsProduct p = rows_product(rows, {x, n.features, true}, n.hidden, n.parts, u);
  described(describe(p.b, up, false, {n.features, n.hidden, n.parts, n.experts}, {kTerms, kColumns / 2, 1, 1}));
  described(describe(p.act, a, false, {n.hidden, 1, rows.rows}, {64, 1, 64}));
  p.act_to = static_cast<bf16*>(a), p.activation = activation;
  run(rows_kernel<true, false, Epilogue::activated>, p, pairs_of(p), stream);
}

void down_product(CudaStream stream, const Rows& rows, const ExpertsSize& n, const void* a, const void* down,
                  const void* weights, bool weights_are_bf16, void* y) {
  RowsProduct p = rows_product(rows, {a, n.hidden, false}, n.features, 1, y);
  described(describe(p.b, down, false, {n.hidden, n.features, 1, n.experts}, {kTerms, kColumns / 2, 1, 1}));
  p.weights = {const_cast<void*>(weights), weights_are_bf16};
  run(rows_kernel<false, false, Epilogue::weighted>, p, pairs_of(p), stream);
}

void product(CudaStream stream, const Rows& rows, const Operand& x, const void* matrix, int64_t columns, void* y) {
  RowsProduct p = rows_product(rows, x, columns, 1, y);
  described(describe(p.b, matrix, false, {columns, x.width, rows.experts}, {64, kTerms, 1}));
  if (x.by_token)
    run(rows_kernel<true, true, Epilogue::plain>, p, pairs_of(p), stream);
  else
    run(rows_kernel<false, true, Epilogue::plain>, p, pairs_of(p), stream);
}

void sum_over_rows(CudaStream stream, const Rows& rows, const Operand& left, const Operand& right, void* y,
                   bool y_is_bf16, bool adds) {
  check(left.by_token != right.by_token, "moe: one of the operands is by token");
  const bool transposed = right.by_token;
  const Operand &lines = transposed ? right : left, &columns = transposed ? left : right;
  SumOverRows x{};
  x.starts = rows.starts, x.token_of = rows.token_of, x.experts = static_cast<int>(rows.experts);
  x.lines = static_cast<int>(lines.width), x.columns = static_cast<int>(columns.width);
  x.line_pairs = static_cast<int>(ceil_div(lines.width, 2 * kLines));
  x.column_tiles = static_cast<int>(ceil_div(columns.width, kColumns));
  x.tokens = static_cast<const uint4*>(lines.data), x.adds = adds;
  if (y_is_bf16) x.to = static_cast<bf16*>(y);
  described(describe(x.right, columns.data, false, {columns.width, rows.rows, 1}, {64, kTerms, 1}));
  described(describe(x.c, y, !y_is_bf16, {right.width, left.width, rows.experts},
                     {y_is_bf16 ? 64 : 32, !y_is_bf16 && transposed ? 32 : 64, 1}));
  run(transposed ? sums_kernel<true> : sums_kernel<false>, x, rows.experts * x.line_pairs * x.column_tiles, stream);
}

}  // namespace trainctl::grouped
