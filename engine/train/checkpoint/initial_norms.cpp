// Initializes DoRA's trained magnitudes with the row norms of the base weights, computed after the weights have been
// rounded to the format in which they are stored (the values that matrix products read).
#include "engine/train/checkpoint/initial_norms.h"

#include <algorithm>
#include <cmath>

#include "engine/base/error.h"
#include "engine/graph/half.h"
#include "engine/runtime/stored_ranges.h"
#include "engine/train/checkpoint/read_ahead.h"

namespace trainctl {
namespace {

float norm_of(const std::vector<float>& row) {
  double sum = 0;
  for (const float v : row) sum += double{v} * v;
  return static_cast<float>(std::sqrt(sum));
}

std::vector<float> norms_of(const StoredRange& range, const Variable& base, const MappedWeights& weights) {
  const Variable& v = *range.variable;
  const int64_t columns = weights.shape(v.init.of)[1];
  std::vector<float> row(static_cast<size_t>(columns)), norms;
  for (int64_t i = 0; i < range.count; ++i) {
    weights.read(v.init.of, {{v.offset[0] + range.first + i, 0}, {1, columns}}, DType::f32, row.data());
    round_as_stored(base.packing, row.data(), columns);
    norms.push_back(norm_of(row));
  }
  return norms;
}

}  // namespace

void init_row_norms(const Program& program, const MappedWeights& weights, Executor& executor,
                    const std::function<void()>& on_progress) {
  struct Norms {
    StoredRange range;
    const Variable* base;
  };
  std::vector<Norms> all;
  for (const StoredRange& range : stored_ranges(program)) {
    const Variable& v = *range.variable;
    if (range.slot != kWeightSlot || v.init.kind != Init::Kind::row_norms) continue;
    const auto base = std::find_if(program.variables.begin(), program.variables.end(),
                                   [&](const Variable& other) { return other.name == v.init.of; });
    check(base != program.variables.end() && weights.has(v.init.of), "the weight whose norms are trained is loaded");
    all.push_back({range, &*base});
  }
  read_ahead(
      all.size(), [&](size_t i) { return norms_of(all[i].range, *all[i].base, weights); },
      [&](size_t i, const std::vector<float>& norms) {
        const StoredRange& range = all[i].range;
        if (on_progress) on_progress();
        if (range.dtype == DType::f32) return executor.write(range.offset, norms.data(), range.bytes());
        std::vector<uint16_t> rounded(norms.size());
        floats_to_halves(range.dtype, norms.data(), static_cast<int64_t>(norms.size()), rounded.data());
        executor.write(range.offset, rounded.data(), range.bytes());
      });
}

}  // namespace trainctl
