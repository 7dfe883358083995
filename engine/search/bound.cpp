// Computes a lower bound for the time of a step. It does not count work that a pass of the compiler may leave out:
// element-wise chains, biases and losses are fused with adjacent kernels.
#include "engine/search/bound.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "engine/ops/op_def.h"
#include "engine/ops/optimizer_def.h"
#include "engine/plan/plan.h"

namespace trainctl {
namespace {

struct BestRates {
  FlopsPerSecond products;
  BytesPerSecond memory;
};

/// Best rates of kernels in a step.
BestRates best_rates(const Machine& machine, Precision precision, const StepCost& in_step) {
  const auto least = [&](Seconds alone) {
    return std::min(in_step.of_kernel(alone, true, true), in_step.of_kernel(alone, false, true)).value;
  };
  // Kernels that were not measured take a launch more than these rates say, which counts for what a gap saves.
  const double stretch = std::min(in_step.product_stretch, in_step.other_stretch);
  const FlopsPerSecond products = machine.product_rate(compute_type(precision), precision == Precision::tf32);
  BestRates best = {{products.value / stretch}, {machine.memory_rate.value / stretch}};
  for (const auto& [key, model] : machine.kernels)
    for (const KernelSample& sample : model.samples()) {
      if (sample.seconds.value <= 0) continue;
      best.products = std::max(best.products, FlopsPerSecond{sample.cost.flops / least(sample.priced())});
      best.memory = std::max(best.memory, BytesPerSecond{sample.cost.bytes / least(sample.priced())});
    }
  return best;
}

std::vector<TensorInfo> infos_of(const Graph& graph, const std::vector<TensorId>& tensors) {
  std::vector<TensorInfo> infos;
  for (TensorId t : tensors)
    infos.push_back({graph.tensors[static_cast<size_t>(t)].shape, graph.tensors[static_cast<size_t>(t)].dtype});
  return infos;
}

double node_least(const Graph& graph, const Node& node, bool is_loss, const BestRates& rates) {
  const OpDef& op = get_op(node.op);
  if (op.kernel.is_product && op.kernel.cost != nullptr)
    return (Flops{op.kernel.cost(infos_of(graph, node.inputs), infos_of(graph, node.outputs), node.attrs).flops} /
            rates.products)
        .value;
  if (node.rule.inner.empty() || is_loss) return 0;
  double largest = 0;
  for (const TensorInfo& input : infos_of(graph, node.inputs))
    largest = std::max(largest, static_cast<double>(bytes_of(input)));
  return (Bytes{largest} / rates.memory).value;
}

}  // namespace

/// The work that any plan must do, at the best rates of the machine: a lower bound of the step.
LeastWork least_work(const CutNetwork& network, const JobSpec& job, const Machine& machine) {
  const Graph& graph = network.graph;
  const StepCost in_step = step_cost(machine.steps);
  const BestRates rates = best_rates(machine, job.precision, in_step);
  LeastWork work;
  std::vector<double> times_of_parameter(graph.tensors.size(), 0);
  for (const Node& node : graph.nodes) {
    const size_t l = static_cast<size_t>(node.layer);
    work.micro_batch_seconds += network.times[l] * node_least(graph, node, network.facts[l].is_loss, rates);
    for (TensorId t : node.inputs) times_of_parameter[static_cast<size_t>(t)] = network.times[l];
  }
  const OptimizerDef& optimizer = get_optimizer(job.optimizer.type);
  double bytes = 0;
  for (const Update& update : graph.updates) {
    const size_t states = optimizer.states(job.optimizer.settings_of(update.group)).size(),
                 p = static_cast<size_t>(update.parameter);
    if (states == 0) continue;  // it may be part of the gradient's kernel
    bytes += times_of_parameter[p] * 8.0 * static_cast<double>(states + 1) *
             static_cast<double>(num_elements(graph.tensors[p].shape));
  }
  work.update_seconds = (Bytes{bytes} / rates.memory).value;
  work.host_seconds = in_step.host.value;
  return work;
}

double least_seconds(const LeastWork& work, int ranks, int stages, int micro_batches, Schedule schedule) {
  const double m = micro_batches, all = m * work.micro_batch_seconds;
  const bool waits = schedule == Schedule::gpipe || schedule == Schedule::one_f_one_b;
  // One stage after the other on a stage's ranks takes all / (ranks / stages).
  const double passes = waits ? stages / (m * (1 - std::pow(1 - 1 / m, stages))) : 1;
  return std::max(all * passes, all + work.update_seconds) / ranks + work.host_seconds;
}

}  // namespace trainctl
