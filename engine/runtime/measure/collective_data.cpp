// Inputs and expected results of a benchmarked collective: rank r's element i is (i mod 7) + r.
#include "engine/runtime/measure/collective_data.h"

#include <algorithm>

namespace trainctl {
namespace {

float element(int64_t i, int rank) { return static_cast<float>(i % 7 + rank); }

/// The expected element i of the result of rank `rank`, whose output has `size` elements.
float expected(Collective kind, int64_t i, int64_t size, int rank, int num_ranks) {
  const int64_t block = size / num_ranks, p = num_ranks;
  const auto sum = [&](int64_t at) { return static_cast<float>(p * (at % 7) + p * (p - 1) / 2); };
  switch (kind) {
    case Collective::all_reduce:
      return sum(i);
    case Collective::reduce_scatter:
      return sum(size * rank + i);  // `size` is that of one block
    case Collective::all_gather:
      return element(i % block, static_cast<int>(i / block));
    case Collective::all_to_all:
      return element(block * rank + i % block, static_cast<int>(i / block));
    case Collective::broadcast:
      return element(i, 0);
  }
  return 0;
}

}  // namespace

CollectiveSizes collective_sizes(Collective kind, int64_t bytes, int num_ranks) {
  const int64_t all = bytes / 4, block = all / num_ranks;
  if (kind == Collective::all_gather) return {block, all, block};
  if (kind == Collective::reduce_scatter) return {all, block, block};
  if (kind == Collective::all_to_all) return {all, all, block};
  return {all, all, all};
}

std::vector<float> collective_input(int64_t count, int rank) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = element(i, rank);
  return values;
}

int64_t count_wrong(Collective kind, const std::vector<float>& out, int rank, int num_ranks) {
  int64_t wrong = 0;
  const auto size = static_cast<int64_t>(out.size());
  for (int64_t i = 0; i < size; ++i) {
    wrong += out[static_cast<size_t>(i)] != expected(kind, i, size, rank, num_ranks) ? 1 : 0;
  }
  return wrong;
}

}  // namespace trainctl
