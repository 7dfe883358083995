// The load of the experts of each layer in a step, from the states that the ranks' programs keep
// (ops/moe/expert_load.h).
#include "engine/train/trainer/expert_loads.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/base/error.h"
#include "engine/ops/moe/expert_load.h"
#include "engine/runtime/stored_ranges.h"

namespace trainctl {
namespace {

/// "h.0.moe" of "h.0.moe.expert_load".
std::string layer_of_load(const std::string& state) {
  return state.substr(0, state.size() - kExpertLoadState.size() - 1);
}

/// All loads in the order of their layers, whose number and sizes all ranks of a stage know.
///   for each layer: i64 length of its name, name, i64 number of values, values
std::string bytes_of_loads(const LoadsOfLayers& loads) {
  std::string bytes;
  const auto put = [&bytes](const void* from, size_t size) { bytes.append(static_cast<const char*>(from), size); };
  for (const auto& [layer, values] : loads) {
    const auto length = static_cast<int64_t>(layer.size()), count = static_cast<int64_t>(values.size());
    put(&length, sizeof length);
    put(layer.data(), layer.size());
    put(&count, sizeof count);
    put(values.data(), values.size() * sizeof(float));
  }
  return bytes;
}

void add_loads(const std::string& bytes, LoadsOfLayers& loads) {
  size_t at = 0;
  const auto take = [&](void* to, size_t size) {
    check(at + size <= bytes.size(), "a message with loads of experts is whole");
    std::memcpy(to, bytes.data() + at, size);
    at += size;
  };
  while (at < bytes.size()) {
    int64_t length = 0, count = 0;
    take(&length, sizeof length);
    std::string layer(static_cast<size_t>(length), '\0');
    take(layer.data(), layer.size());
    take(&count, sizeof count);
    std::vector<float> values(static_cast<size_t>(count));
    take(values.data(), values.size() * sizeof(float));
    std::vector<float>& sum = loads[layer];
    sum.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
  }
}

}  // namespace

bool reports_expert_loads(const PlannedJob& job) {
  const std::vector<Tensor>& tensors = job.graph.tensors;
  const bool are_shared = !job.plan.is_asynchronous() && !job.plan.has_replicas();  // others have loads of their own
  return are_shared && std::any_of(tensors.begin(), tensors.end(), [](const Tensor& tensor) {
           return tensor.kind == TensorKind::state && is_expert_load(tensor.name);
         });
}

LoadsOfLayers own_expert_loads(const Program& program, Executor& executor) {
  LoadsOfLayers loads;
  for (const StoredRange& range : stored_ranges(program)) {
    if (range.slot != kStateSlot || range.own_count == 0 || !is_expert_load(range.variable->name)) continue;
    std::vector<float>& values = loads[layer_of_load(range.variable->name)];
    values.resize(static_cast<size_t>(num_elements(range.variable->shape)));
    executor.read(range.own_offset(), values.data() + range.own_first, range.own_bytes());
  }
  return loads;
}

ExpertLoads::ExpertLoads(const Program& program, Communicator& comm, int workers, int64_t every, int64_t first_step,
                         Sink sink)
    : program_(program), comm_(comm), workers_(workers), every_(every), sink_(std::move(sink)), last_(first_step) {}

/// All workers get here with the same steps.
void ExpertLoads::report(int64_t step, Executor& executor) {
  if (step == last_) return;
  last_ = step;
  LoadsOfLayers loads = own_expert_loads(program_, executor);
  if (program_.rank > 0) {
    const std::string bytes = bytes_of_loads(loads);
    const auto size = static_cast<int64_t>(bytes.size());
    int64_t sent = comm_.send(0, &size, sizeof size);
    if (size > 0) sent = comm_.send(0, bytes.data(), size);
    comm_.wait_send(0, sent);
    return;
  }
  for (int rank = 1; rank < workers_; ++rank) {
    int64_t size = 0;
    comm_.recv(rank, &size, sizeof size);
    if (size == 0) continue;
    std::string bytes(static_cast<size_t>(size), '\0');
    comm_.recv(rank, bytes.data(), size);
    add_loads(bytes, loads);
  }
  sink_(step, loads);
}

}  // namespace trainctl
