// A pool of counters in device memory. A freed range is reused by the next request of the same size. Requests that the
// pool cannot serve get memory of their own.
#include <map>
#include <mutex>
#include <vector>

#include "engine/ops/cuda/launch_cuda.h"
#include "engine/ops/small_step/tickets_cuda.h"

namespace trainctl {
namespace {

constexpr int kTickets = 1 << 18;
__device__ unsigned tickets[kTickets];

struct Pool {
  std::mutex mutex;
  int next = 0;
  std::map<int, std::vector<int>> free;  ///< by count: the first counter of each range

  int take(int count) {
    std::lock_guard lock(mutex);
    std::vector<int>& same = free[count];
    if (!same.empty()) {
      const int first = same.back();
      same.pop_back();
      return first;
    }
    if (next + count > kTickets) return -1;
    next += count;
    return next - count;
  }
  void give_back(int first, int count) {
    std::lock_guard lock(mutex);
    free[count].push_back(first);
  }
};

Pool& pool() {
  static auto* const all = new Pool;  // outlives kernels in global variables
  return *all;
}

Tickets own_tickets(int count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(unsigned);
  void* memory = nullptr;
  cuda_check(cudaMalloc(&memory, bytes), "the counters of split sums");
  Tickets tickets(static_cast<unsigned*>(memory), [](unsigned* own) { cudaFree(own); });
  cuda_check(cudaMemset(memory, 0, bytes), "cudaMemset");
  cuda_check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  return tickets;
}

}  // namespace

Tickets take_tickets(int count) {
  void* memory = nullptr;
  cuda_check(cudaGetSymbolAddress(&memory, tickets), "cudaGetSymbolAddress");
  const int first = pool().take(count);
  if (first < 0) return own_tickets(count);
  return {static_cast<unsigned*>(memory) + first, [first, count](unsigned*) { pool().give_back(first, count); }};
}

}  // namespace trainctl
