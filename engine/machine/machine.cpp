// Times on a machine, and the placement of groups of ranks on it.
#include "engine/machine/machine.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "engine/machine/unmeasured_time.h"

namespace trainctl {
namespace {

int rounds(int members) { return std::bit_width(static_cast<unsigned>(members - 1)); }

bool multiplies_halves(Infos inputs) {
  return std::any_of(inputs.begin(), inputs.end(), [](const TensorInfo& info) { return is_half(info.dtype); });
}

/// "8x2": without trailing ones.
std::string to_text(const GroupSpread& spread) {
  std::vector<int> units = spread.units;
  while (units.size() > 1 && units.back() == 1) units.pop_back();
  std::string text;
  for (size_t l = 0; l < units.size(); ++l) text += (l == 0 ? "" : "x") + std::to_string(units[l]);
  return text;
}

/// The innermost level that joins members of the group. There are several.
size_t innermost(const GroupSpread& spread) {
  const auto first = std::find_if(spread.units.begin(), spread.units.end(), [](int units) { return units > 1; });
  return static_cast<size_t>(first - spread.units.begin());
}

/// Ascending, each once.
void sort_once(std::vector<int>& numbers) {
  if (!std::is_sorted(numbers.begin(), numbers.end())) std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
}

/// Rate at which the factors are multiplied. 8-bit factors are multiplied twice as fast as bf16.
FlopsPerSecond rate_of_products(const Machine& machine, Infos inputs, const Attrs& attrs) {
  if (attrs.flag("fp8")) return machine.products.bf16 * 2;
  return machine.product_rate(multiplies_halves(inputs) ? DType::bf16 : DType::f32, attrs.flag("tf32"));
}

}  // namespace

FlopsPerSecond Machine::product_rate(DType dtype, bool tf32) const {
  return is_half(dtype) ? products.bf16 : tf32 ? products.tf32 : products.fp32;
}

int GroupSpread::size() const { return std::accumulate(units.begin(), units.end(), 1, std::multiplies<>()); }

GroupSpread spread_of(const Machine& machine, std::span<const int> ranks) {
  GroupSpread spread;
  std::vector<int> units(ranks.begin(), ranks.end());
  sort_once(units);
  for (const LinkLevel& level : machine.links) {
    std::vector<int> outer;
    for (int unit : units) outer.push_back(level.devices == 0 ? 0 : unit / level.devices);
    sort_once(outer);
    // Groups that do not divide evenly among networks are taken for as wide as their widest part.
    const size_t widest = (units.size() + outer.size() - 1) / outer.size();
    spread.units.push_back(static_cast<int>(widest));
    units = std::move(outer);
  }
  return spread;
}

int64_t wire_bytes(Collective kind, int64_t bytes, int group_size) {
  if (group_size <= 1) return 0;
  const int64_t once = bytes - (bytes + group_size - 1) / group_size;  // bytes * (group_size - 1) may be too large
  if (kind == Collective::broadcast) return bytes;
  return kind == Collective::all_reduce ? 2 * once : once;
}

// In a group on h hosts with g members each, g devices share the traffic between the hosts: each host sends (h-1)/h of
// the bytes, g devices at a time. Within a host, the traffic is as among all members.
Seconds collective_time(const Machine& machine, Collective kind, Bytes bytes, const GroupSpread& spread) {
  if (spread.size() <= 1) return {};
  if (!machine.calls.empty()) {
    const auto measured = machine.calls.find(call_key(kind, spread));
    const auto sent = static_cast<double>(wire_bytes(kind, static_cast<int64_t>(bytes.value), spread.size()));
    if (measured != machine.calls.end()) return measured->second.seconds(call_sizes(bytes), {.bytes = sent});
  }
  const double passes = kind == Collective::all_reduce ? 2 : 1;
  Seconds latency, slowest;
  double inner = 1;  // members of a unit of this level
  for (size_t l = 0; l < spread.units.size(); ++l) {
    const int units = spread.units[l];
    const LinkLevel& link = machine.links[l];
    if (units > 1) {
      const double reach = l == 0 ? spread.size() : units;
      const double sent = kind == Collective::broadcast ? 1 : passes * (reach - 1) / reach;
      latency += link.latency * (passes * rounds(units));
      slowest = std::max(slowest, sent * bytes / inner / link.bandwidth);
    }
    inner *= units;
  }
  return machine.links[innermost(spread)].latency + latency + slowest;
}

std::string call_key(Collective kind, const GroupSpread& spread) {
  return std::string(to_string(kind)) + " " + to_text(spread);
}

std::string message_key(const GroupSpread& spread) { return "message " + to_text(spread); }

std::vector<double> call_sizes(Bytes bytes) { return {std::log2(std::max(bytes.value, 1.0))}; }

Seconds send_time(const Machine& machine, Bytes bytes, const GroupSpread& spread) {
  if (spread.size() <= 1) return {};
  const auto measured = machine.calls.find(machine.calls.empty() ? "" : message_key(spread));
  if (measured != machine.calls.end()) return measured->second.seconds(call_sizes(bytes), {.bytes = bytes.value});
  const LinkLevel& link = machine.links[innermost(spread)];
  return link.latency + bytes / link.bandwidth;
}

Bytes Machine::reserved_memory(bool calls_collectives, bool sends_messages) const {
  Bytes total = reserved;
  if (calls_collectives) total += for_collectives;
  if (sends_messages) total += for_messages;
  return total;
}

const KernelModel* model_of(const Machine& machine, const KernelDef& kernel, Infos inputs, Infos outputs,
                            const Attrs& attrs, bool adds) {
  if (machine.kernels.empty()) return nullptr;
  auto found = adds ? machine.kernels.find(kernel_key(kernel, inputs, outputs, attrs, true)) : machine.kernels.end();
  if (found == machine.kernels.end()) found = machine.kernels.find(kernel_key(kernel, inputs, outputs, attrs));
  return found == machine.kernels.end() ? nullptr : &found->second;
}

Seconds kernel_time(const Machine& machine, const KernelDef& kernel, Infos inputs, Infos outputs, const Attrs& attrs,
                    bool adds) {
  const Cost cost = kernel_cost(kernel, inputs, outputs, attrs);
  const FlopsPerSecond products = rate_of_products(machine, inputs, attrs);
  const auto at_rates = [&](const Cost& c) {
    return std::max(Flops{c.flops} / products, Bytes{c.bytes} / machine.memory_rate);
  };
  const KernelModel* found = model_of(machine, kernel, inputs, outputs, attrs, adds);
  if (found == nullptr) return machine.launch + unmeasured_time(machine, kernel, inputs, outputs, cost, products);
  const KernelModel& model = *found;
  if (!model.shows_rates(machine.launch)) {
    // Beyond the largest measured call, the rates of the machine apply.
    const KernelSample& largest = *std::max_element(
        model.samples().begin(), model.samples().end(),
        [&](const KernelSample& a, const KernelSample& b) { return at_rates(a.cost) < at_rates(b.cost); });
    if (at_rates(cost) > at_rates(largest.cost)) return largest.priced() + (at_rates(cost) - at_rates(largest.cost));
  }
  return model.seconds(kernel_sizes(inputs, outputs), cost, to_string(attrs));
}

}  // namespace trainctl
