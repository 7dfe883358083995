// Sums that are split over blocks: each writes its part to scratch, and the last one to end adds the parts in order.
#pragma once

#include "engine/base/round_up.h"
#include "engine/ops/cuda/launch_cuda.h"
#include "engine/ops/small_step/tickets_cuda.h"

namespace trainctl {

/// Parts of a split sum, in double, and a ticket per tile: [splits, kSums, outputs]; for columns [splits, tiles,
/// kSums * V, lanes], so that a warp's accesses are contiguous.
struct Parts {
  double* memory = nullptr;
  unsigned* tickets = nullptr;
  int64_t outputs = 0;
};

/// Called by the thread that wrote a part: returns how many parts were handed in before.
__device__ inline unsigned hand_in(unsigned* ticket) {
  __threadfence();
  return atomicAdd(ticket, 1u);
}
/// True if this block was the last of `blocks` to hand in; then all parts are visible. `came_before`: of thread 0.
__device__ inline bool was_last(unsigned came_before, unsigned* ticket, unsigned blocks) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    last = came_before == blocks - 1;
    if (last) *ticket = 0;
  }
  __syncthreads();
  if (last) __threadfence();
  return last;
}
/// Both in one, for parts that all threads of the block wrote.
__device__ inline bool ends_last(unsigned* ticket, unsigned blocks) {
  __threadfence();
  __syncthreads();
  return was_last(threadIdx.x == 0 ? atomicAdd(ticket, 1u) : 0, ticket, blocks);
}

// Launchers

/// Work of one of `splits` blocks, in whole rounds of the elements that a block has in flight, because the remainder is
/// processed one by one.
inline int64_t share_of(int64_t work, int64_t splits, int64_t round) {
  return std::max(round, round_up(ceil_div(work, splits), round));
}
/// Number of blocks that share the sum of one tile: each has enough work to justify its start, and the blocks of all
/// tiles run `at_once`, because a few more would need a second wave.
inline int64_t splits_for(int64_t at_once, int64_t tiles, int64_t work, int64_t least_work, int64_t round) {
  const int64_t wanted = at_once / std::max<int64_t>(1, tiles);
  const int64_t splits = std::clamp<int64_t>(std::min(wanted, work / least_work), 1, 1024);
  return std::max<int64_t>(1, ceil_div(work, share_of(work, splits, round)));
}

/// Scratch and tickets of a split sum.
struct Split {
  int64_t splits = 1;
  Tickets tickets;
  CudaScratch* scratch = nullptr;

  Split(const CudaKernelCall& call, int64_t wanted, int64_t tiles, int64_t doubles) : scratch(call.scratch) {
    if (wanted <= 1) return;
    tickets = take_tickets(static_cast<int>(tiles));
    splits = wanted;
    scratch->need(splits * doubles * static_cast<int64_t>(sizeof(double)));
  }
  Parts parts(int64_t outputs) const {
    return {splits > 1 ? static_cast<double*>(scratch->memory()) : nullptr, tickets.get(), outputs};
  }
};

}  // namespace trainctl
