// Measures a machine for the estimator: the kernels that jobs run, each distinct call once, and the collectives between
// the devices of this host.
#include "cli/measure/calibration.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace trainctl {
namespace {

OpRequest request_of(const Instruction& instruction) {
  OpRequest request;
  request.kernel = kernel_of(instruction);
  if (request.kernel->example != nullptr) request.example = request.kernel->example();
  request.inputs = infos_of(instruction.inputs);
  request.outputs = infos_of(instruction.outputs);
  request.attrs = instruction.attrs;
  for (size_t i = 0; i < instruction.outputs.size(); ++i)
    request.adds |= instruction.outputs[i].accumulate ? 1U << i : 0U;
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    using Fill = KernelExample::Fill;
    const bool has_example = i < request.example.inputs.size();
    request.fills.push_back(request.inputs[i].dtype == DType::i32 ? Fill::indices
                            : has_example                         ? request.example.inputs[i].fill
                                                                  : Fill::values);
    request.type.dtype = request.inputs[i].dtype == DType::bf16 ? DType::bf16 : request.type.dtype;
  }
  request.type.tf32 = request.attrs.flag("tf32");
  request.below = request.example.below != nullptr ? request.example.below(request.inputs, request.attrs) : 1;
  return request;
}

std::string key_of(const OpRequest& request) {
  return kernel_key(*request.kernel, request.inputs, request.outputs, request.attrs, request.adds != 0);
}

bool has_sample(const Machine& machine, const std::string& key, const KernelSample& call) {
  const auto model = machine.kernels.find(key);
  if (model == machine.kernels.end()) return false;
  const std::vector<KernelSample>& samples = model->second.samples();
  return std::any_of(samples.begin(), samples.end(), [&](const KernelSample& s) {
    return s.sizes == call.sizes && s.cost.flops == call.cost.flops && s.attrs == call.attrs;
  });
}

/// A machine before any measurement.
KernelSample sample_of(const OpRequest& request) {
  return {.sizes = kernel_sizes(request.inputs, request.outputs),
          .cost = kernel_cost(*request.kernel, request.inputs, request.outputs, request.attrs),
          .seconds = {},
          .attrs = to_string(request.attrs)};
}

void add_sample(KernelSamples& models, const std::string& key, KernelSample sample) {
  std::vector<KernelSample> samples;
  if (const auto known = models.find(key); known != models.end()) samples = known->second.samples();
  samples.push_back(std::move(sample));
  models.insert_or_assign(key, KernelModel(std::move(samples)));
}

double middle(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

}  // namespace

MeasuredCall call_of(const Instruction& kernel) {
  const OpRequest request = request_of(kernel);
  return {key_of(request), sample_of(request)};
}

void KernelCalls::add(const RankClasses& classes, bool always) {
  for (const Program& program : classes.programs)
    for (const Instruction& instruction : program.instructions) {
      if (instruction.opcode != Opcode::kernel) continue;
      OpRequest request = request_of(instruction);
      const KernelSample call = sample_of(request);
      auto& by_call = calls_[key_of(request)];
      by_call.try_emplace({call.sizes, call.cost.flops, call.attrs}, Call{std::move(request)}).first->second.always |=
          always;
    }
}

std::vector<OpRequest> KernelCalls::to_measure(const Machine& machine, size_t most) const {
  std::vector<OpRequest> chosen;
  for (const auto& [key, by_call] : calls_) {
    const auto choose = [&, &name = key](const OpRequest& request) {
      if (!has_sample(machine, name, sample_of(request))) chosen.push_back(request);
    };
    std::vector<const OpRequest*> others;
    for (const auto& [point, call] : by_call) {
      if (call.always) {
        choose(call.request);
      } else {
        others.push_back(&call.request);
      }
    }
    const size_t count = std::min(most, others.size());
    for (size_t i = 0; i < count; ++i) choose(*others[count == 1 ? 0 : i * (others.size() - 1) / (count - 1)]);
  }
  return chosen;
}

void calibrate_kernel(OpBench& bench, const OpRequest& request, Machine& machine) {
  KernelSample sample = sample_of(request);
  sample.seconds = {bench.run(request).seconds.median};
  add_sample(machine.kernels, key_of(request), std::move(sample));
}

bool has_collectives(const Machine& machine, int ranks) {
  const auto has = [&](const std::string& name) {
    return machine.calls.contains(call_key(*find_collective(name), {{ranks}}));
  };
  const std::vector<std::string> names = collective_names();
  return std::all_of(names.begin(), names.end(), has);
}

// The smallest call of each kind determines the latency of its steps, the largest the bandwidth.
void calibrate_links(const std::vector<CollectiveResult>& results, Machine& machine) {
  std::map<std::pair<Collective, int>, std::vector<const CollectiveResult*>> kinds;
  for (const CollectiveResult& result : results) kinds[{result.kind, result.ranks}].push_back(&result);
  std::vector<double> latencies, bandwidths;
  for (const auto& [kind, of_kind] : kinds) {
    const auto [least, largest] = std::minmax_element(of_kind.begin(), of_kind.end(),
                                                      [](const auto* a, const auto* b) { return a->bytes < b->bytes; });
    const int rounds = std::bit_width(static_cast<unsigned>(kind.second - 1));
    const int steps = 1 + (kind.first == Collective::all_reduce ? 2 : 1) * rounds;
    latencies.push_back((*least)->seconds.median / steps);
    const double seconds = (*largest)->seconds.median - (*least)->seconds.median;
    if (seconds > 0)
      bandwidths.push_back(static_cast<double>(wire_bytes(kind.first, (*largest)->bytes, kind.second)) / seconds);
  }
  if (!latencies.empty()) machine.links.front().latency = {middle(latencies)};
  if (!bandwidths.empty()) machine.links.front().bandwidth = {middle(bandwidths)};
  for (const auto& [kind, of_kind] : kinds) machine.calls.erase(call_key(kind.first, {{kind.second}}));
  for (const CollectiveResult& result : results) {
    const GroupSpread spread{{result.ranks}};
    const auto sent = static_cast<double>(wire_bytes(result.kind, result.bytes, result.ranks));
    add_sample(machine.calls, call_key(result.kind, spread),
               {call_sizes({static_cast<double>(result.bytes)}), {.bytes = sent}, {result.seconds.median}});
  }
}

bool has_messages(const Machine& machine) { return machine.calls.contains(message_key({{2}})); }

void calibrate_messages(const std::vector<MessageResult>& results, Machine& machine) {
  const std::string key = message_key({{2}});
  machine.calls.erase(key);
  for (const MessageResult& result : results) {
    const Bytes bytes{static_cast<double>(result.bytes)};
    add_sample(machine.calls, key, {call_sizes(bytes), {.bytes = bytes.value}, result.seconds});
  }
}

}  // namespace trainctl
