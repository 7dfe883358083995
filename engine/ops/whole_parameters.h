// The parameters in a shard of a bucket, for kernels that need whole parameters: attr `parameters` has for each shard a
// list of first element, rows and columns (OptimizerDef::needs_whole_parameters).
#pragma once

#include <vector>

#include "engine/base/error.h"
#include "engine/ops/kernel.h"

namespace trainctl {

struct WholeParameter {
  int64_t first = 0;  ///< its first element in the shard
  int64_t rows = 0, cols = 0;

  int64_t size() const { return rows * cols; }
};

inline std::vector<WholeParameter> whole_parameters(const Ints& list) {
  std::vector<WholeParameter> parameters;
  for (size_t i = 0; i + 2 < list.size(); i += 3) parameters.push_back({list[i], list[i + 1], list[i + 2]});
  return parameters;
}

/// Returns the parameters in the shard that the call updates. An operand that is a shard of a range on all ranks
/// identifies the shard.
inline std::vector<WholeParameter> whole_parameters(const KernelCall& call) {
  const std::vector<Ints> shards = call.attrs.int_lists("parameters");
  size_t shard = 0;
  const auto look = [&](const TensorArg& arg) {
    if (arg.global_shape.size() == 1 && arg.global_shape != arg.shape && arg.shape[0] > 0)
      shard = static_cast<size_t>(arg.offset[0] / arg.shape[0]);
  };
  if (shards.size() > 1) {
    for (const TensorArg& in : call.in) look(in);
    for (const TensorArg& out : call.out) look(out);
  }
  check(shard < shards.size(), "a kernel of whole parameters has a list of those in each shard");
  return whole_parameters(shards[shard]);
}

}  // namespace trainctl
