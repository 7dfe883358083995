// train.histograms: how the weights and the gradients of a step are distributed.
#include "engine/train/trainer/tensor_histograms.h"

#include <span>
#include <utility>
#include <vector>

#include "engine/runtime/stored_ranges.h"
#include "engine/train/trainer/own_values.h"

namespace trainctl {
namespace {

void count(const StoredRange& range, Executor& executor, Histogram& histogram, float factor = 1) {
  for_each_own_block(
      range, executor, [&](int64_t, std::span<const float> values) { histogram.add(values); }, factor);
}

}  // namespace

std::map<std::string, Histogram> own_histograms(const Program& program, Executor& executor) {
  std::map<std::string, Histogram> histograms;
  for (const StoredRange& range : stored_ranges(program))
    if (range.slot == kWeightSlot && range.own_count > 0)
      count(range, executor, histograms["weights/" + range.variable->name]);
  const float factor = gradient_factor(program, executor);
  for (const StoredRange& range : gradient_ranges(program))
    if (range.own_count > 0) count(range, executor, histograms["gradients/" + range.variable->name], factor);
  return histograms;
}

std::vector<Route> routes_of_histograms(int processes) {
  std::vector<Route> routes;
  for (int rank = 1; rank < processes; ++rank) routes.push_back({rank, 0});
  return routes;
}

TensorHistograms::TensorHistograms(const Program& program, Communicator& comm, int64_t every, int64_t first_step,
                                   Sink sink)
    : program_(program), comm_(comm), every_(every), sink_(std::move(sink)), last_(first_step) {}

/// Collects the histograms of the state after `step` steps. All ranks get here with the same steps.
void TensorHistograms::after(int64_t step, Executor& executor) {
  if (step == last_ || step % every_ != 0) return;
  last_ = step;
  std::map<std::string, Histogram> histograms = own_histograms(program_, executor);
  if (program_.rank > 0) {
    const std::string bytes = to_bytes(histograms);
    const auto size = static_cast<int64_t>(bytes.size());
    comm_.send(0, &size, sizeof size);
    comm_.wait_send(0, comm_.send(0, bytes.data(), size));
    return;
  }
  for (int rank = 1; rank < comm_.num_ranks(); ++rank) {
    int64_t size = 0;
    comm_.recv(rank, &size, sizeof size);
    std::string bytes(static_cast<size_t>(size), '\0');
    comm_.recv(rank, bytes.data(), size);
    for (const auto& [name, histogram] : histograms_of(bytes)) histograms[name].add(histogram);
  }
  sink_(step, histograms);
}

}  // namespace trainctl
