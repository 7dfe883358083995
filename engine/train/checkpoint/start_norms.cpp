// See the header.
#include "engine/train/checkpoint/start_norms.h"

#include <algorithm>
#include <cmath>

#include "engine/base/error.h"
#include "engine/graph/bf16.h"
#include "engine/runtime/stored_ranges.h"

namespace trainctl {
namespace {

float norm_of(const std::vector<float>& row) {
  double sum = 0;
  for (const float v : row) sum += double{v} * v;
  return static_cast<float>(std::sqrt(sum));
}

}  // namespace

void load_norms(const Program& program, const MappedWeights& weights, Executor& executor) {
  for (const StoredRange& range : stored_ranges(program)) {
    const Variable& v = *range.variable;
    if (range.slot != kWeightSlot || v.init.kind != Init::Kind::row_norms) continue;
    const auto of = std::find_if(program.variables.begin(), program.variables.end(),
                                 [&](const Variable& other) { return other.name == v.init.of; });
    check(of != program.variables.end() && weights.has(v.init.of), "the weight whose norms are trained is loaded");
    const int64_t columns = weights.shape(v.init.of)[1];
    std::vector<float> row(static_cast<size_t>(columns)), norms;
    for (int64_t i = 0; i < range.count; ++i) {
      weights.read(v.init.of, {{v.offset[0] + range.first + i, 0}, {1, columns}}, DType::f32, row.data());
      round_as_stored(of->packing, row.data(), columns);
      norms.push_back(norm_of(row));
    }
    if (range.dtype == DType::f32) {
      executor.write(range.offset, norms.data(), range.bytes());
      continue;
    }
    std::vector<uint16_t> rounded(norms.size());
    std::transform(norms.begin(), norms.end(), rounded.begin(), to_bf16);
    executor.write(range.offset, rounded.data(), range.bytes());
  }
}

}  // namespace trainctl
