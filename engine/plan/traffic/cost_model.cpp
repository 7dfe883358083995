// Costs that the planner takes from a machine: seconds of kernels on one rank, and of collectives along axes of a mesh.
#include "engine/plan/traffic/cost_model.h"

#include <algorithm>
#include <utility>

namespace trainctl {
namespace {

/// The number of units of `devices` devices in which the group of rank 0 has ranks. Axes within a unit count as one.
int touched(const Mesh& mesh, const Axes& axes, int devices) {
  int count = 1;
  for (Axis axis : axes) {
    const int stride = mesh.stride(axis), size = mesh.axis_size(axis);
    count *= stride >= devices ? size : (stride * size + devices - 1) / devices;
  }
  return count;
}

GroupSpread spread_along(const Machine& machine, const Mesh& mesh, const Axes& axes) {
  GroupSpread spread;
  int units = mesh.ways(axes);
  for (const LinkLevel& link : machine.links) {
    const int outer = link.devices == 0 ? 1 : touched(mesh, axes, link.devices);
    spread.units.push_back((units + outer - 1) / outer);
    units = outer;
  }
  return spread;
}

}  // namespace

CostModel::CostModel(std::shared_ptr<const Machine> machine, Precision precision)
    : machine_(std::move(machine)),
      products_(machine_->product_rate(compute_type(precision), precision == Precision::tf32)) {
  auto without_latency = std::make_shared<Machine>(*machine_);
  for (LinkLevel& link : without_latency->links) link.latency = {};
  without_latency_ = std::move(without_latency);
}

// The machines of known_machines() live as long as the program, so this shared_ptr owns nothing.
CostModel::CostModel()
    : CostModel(std::shared_ptr<const Machine>(std::shared_ptr<const Machine>(), find_machine("cpu")),
                Precision::fp32) {}

CostModel CostModel::without_latency() const {
  CostModel other = *this;
  other.machine_ = without_latency_;
  return other;
}

double CostModel::compute_seconds(const Cost& cost) const {
  return std::max(Flops{cost.flops} / products_, Bytes{cost.bytes} / machine_->memory_rate).value;
}

double CostModel::copy_seconds(int64_t bytes) const {
  return (Bytes{static_cast<double>(bytes)} / machine_->memory_rate).value;
}

double CostModel::collective_seconds(Collective kind, int64_t bytes, const Mesh& mesh, const Axes& axes) const {
  return collective_time(*machine_, kind, {static_cast<double>(bytes)}, spread_along(*machine_, mesh, axes)).value;
}

double CostModel::collective_seconds(Collective kind, int64_t bytes, std::span<const int> ranks) const {
  return collective_time(*machine_, kind, {static_cast<double>(bytes)}, spread_of(*machine_, ranks)).value;
}

}  // namespace trainctl
