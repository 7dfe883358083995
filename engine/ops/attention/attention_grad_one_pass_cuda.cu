// The gradient of attention by the tensor cores of Hopper, for bf16 and heads of 64 to 128 features: one pass over the
// pairs of queries and keys. Each pair of a tile of 64 queries and a block of 128 keys takes five products:
//
//     p' = k q',  g' from v dy',  dv += p' dy,  dk += g' q,  dq = g k
//     where p = e^(score - log) and g = p (dy v' - mean)
//
//   rows_kernel        of each query: log, in powers of two, and mean = sum dy * out; and the order of the pairs
//                      (one_pass_rows_cuda.cuh)
//   tiles_kernel       a block of threads for a few blocks of keys of a kv head, one after another: dk and dv stay in
//                      registers over all tiles of queries; dq of each tile is added to f32 sums in memory
//                      (one_pass_tiles_cuda.cuh)
//   finish_kernel      dq in bf16 from those sums (one_pass_results_cuda.cuh)
//   add_parts_kernel   dk and dv, if the query heads of a kv head are divided among blocks of threads
//
// Results do not depend on timing: the blocks of keys add to the dq of a tile one after another, each when the tile's
// counter shows its turn. The turns follow the times at which the blocks would come by if each tile took equally long.
// OnePassSchedule makes those times differ by a few tiles, so that blocks seldom wait and find tiles in the L2 cache:
//
//   full     each block of keys starts at a tile of its own and wraps around
//   causal   blocks n and N - 1 - n of N, one after the other, make all blocks of threads equally long; a block of keys
//            starts at the diagonal, or goes backwards from the last tile
//   window   a block of keys goes from the diagonal to the last tile that sees it
//
// A block of threads waits only for those of the same query heads. It takes its number when it starts, so all blocks
// with smaller numbers run or have ended; as those of the same heads fit on the GPU together, each gets its turn.
#include "engine/ops/attention/attention_grad_one_pass_cuda.h"
#include "engine/ops/attention/grad_workspace.h"
#include "engine/ops/attention/one_pass_results_cuda.cuh"
#include "engine/ops/attention/one_pass_rows_cuda.cuh"
#include "engine/ops/attention/one_pass_tiles_cuda.cuh"

namespace trainctl {
namespace {

using namespace attention;
using namespace attention::one_pass;
using namespace cuda;

constexpr int kLeastKeys = 4096;  ///< least keys of heads of 64 features

/// Prepares the kernels of one size. Null: the copy engine cannot read the operands, or the GPU is too small.
template <class S>
CudaKernel prepare_one_pass(const CudaKernelCall& call, const AttentionCall& a) {
  constexpr int kFeatures = S::kFeatures, kPacks = kFeatures / 8;
  const AttentionSize& n = a.size;
  Gradient x{};
  if (!describe(x.q, call.in[a.q_at].data, a.q, n, n.t, n.r, kRows) ||
      !describe(x.k, call.in[a.k_at].data, a.k, n, n.s, 1, kKeys) ||
      !describe(x.v, call.in[a.v_at].data, a.v, n, n.s, 1, kKeys) ||
      !describe(x.dy, call.in[0].data, a.out, n, n.t, n.r, kRows))
    return nullptr;
  const OnePassMemory memory(n, a.causal);
  x.schedule = {static_cast<int>(memory.tiles),
                static_cast<int>(memory.blocks),
                static_cast<int>(memory.columns),
                static_cast<int>(a.first_row),
                a.causal,
                static_cast<int>(n.r / memory.parts),
                static_cast<int>(std::min<int64_t>(a.window, n.s))};
  // Blocks that wait for each other must run together, even while other kernels run.
  if (memory.columns > multiprocessors() / 2) return nullptr;
  x.g = static_cast<int>(n.g), x.r = static_cast<int>(n.r), x.t = static_cast<int>(n.t), x.s = static_cast<int>(n.s);
  x.d = static_cast<int>(n.d), x.parts = static_cast<int>(memory.parts);
  x.scale = a.scale, x.unit = a.scale * kLog2e;
  x.dq = call.out[0].as<bf16>(), x.dk = call.out[a.packed ? 0 : 1].as<bf16>(),
  x.dv = call.out[a.packed ? 0 : 2].as<bf16>();
  x.to_q = a.q, x.to_k = a.k, x.to_v = a.v;
  call.scratch->need(memory.bytes());
  ask_for_shared(tiles_kernel<S>, Shared<S>::bytes(), "attention_grad");
  return [x, memory, n, dy = call.in[0].as<bf16>(), out = call.in[call.in.size() - 2].as<bf16>(),
          logs = call.in.back().as<float>(), heads = a.out, scratch = call.scratch](CudaStream stream) mutable {
    auto* const start = static_cast<char*>(scratch->memory());
    auto* const rows = reinterpret_cast<float*>(start);
    auto* const counters = reinterpret_cast<int*>(start + memory.rows_bytes());
    x.rows = rows;
    x.steps = reinterpret_cast<Step*>(start + memory.rows_bytes() + memory.counters_bytes());
    x.sums = reinterpret_cast<float*>(x.steps + memory.steps());
    x.key_sums = x.sums + memory.sums_bytes() / sizeof(float);
    const auto run = [&](auto* kernel, int64_t blocks, int threads, size_t shared, const auto&... arguments) {
      launch(kernel, static_cast<unsigned>(blocks), static_cast<unsigned>(threads), shared, stream, "attention_grad",
             arguments...);
    };
    const int64_t step_blocks = memory.tiles * x.schedule.heads;
    run(rows_kernel<kFeatures>, step_blocks + n.b * n.heads() * memory.tiles * kRows * kPacks / kRowsThreads,
        kRowsThreads, 0, dy, out, logs, heads, x.g, x.r, x.t, x.d, rows, x.schedule, x.s, x.steps,
        static_cast<int>(step_blocks), counters, static_cast<int>(memory.counters()));
    for (int64_t i = 0; i < memory.launches(); ++i) {
      const int64_t first = i * memory.groups, count = std::min(memory.groups, n.b * n.g - first);
      x.first_group = static_cast<int>(first);
      x.numbers = counters + i;
      x.turns = counters + memory.launches() + first * n.r * memory.tiles;
      run(tiles_kernel<S>, count * memory.parts * memory.columns, kThreads, Shared<S>::bytes(), x);
      run(finish_kernel<kFeatures>, count * n.r * memory.tiles * S::kHalves, kFinishThreads, 0, x);
      if (memory.parts > 1)
        run(add_parts_kernel<kFeatures>, count * 2 * memory.blocks * kKeys * kPacks / kSumThreads, kSumThreads, 0, x);
    }
  };
}

}  // namespace

CudaKernel attention_grad_in_one_pass(const CudaKernelCall& call, const AttentionCall& a) {
  if (a.window > 0 && (!a.causal || a.first_row + a.size.t > a.size.s)) return nullptr;
  if (!one_pass_takes(a.size) || !is_plain_bf16(call, a, true) || !is_hopper()) return nullptr;
  // Few keys take less time in blocks for themselves (attention_grad_groups_cuda.h), which take no windows.
  if (a.size.d == 64 && a.size.s < kLeastKeys && a.window == 0) return nullptr;
  return a.size.d == 64 ? prepare_one_pass<Sizes<64>>(call, a) : prepare_one_pass<Sizes<128>>(call, a);
}

}  // namespace trainctl
