// Costs that the planner takes from a machine: seconds of kernels on one rank, and of collectives along axes of a mesh.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/machine/machine.h"
#include "engine/plan/mesh.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

class CostModel {
 public:
  /// The model of the machine "cpu".
  CostModel();
  /// Ranks lie on the machine's hosts in their order.
  CostModel(std::shared_ptr<const Machine> machine, Precision precision);

  const Machine& machine() const { return *machine_; }
  const std::shared_ptr<const Machine>& shared_machine() const { return machine_; }
  /// The same model for traffic in large buckets, which pays no latency.
  CostModel without_latency() const;

  double compute_seconds(const Cost& cost) const;
  double copy_seconds(int64_t bytes) const;
  /// `bytes` as for collective_time. The group that the first rank of a stage belongs to stands for all: every rank
  /// must come to the same plan.
  double collective_seconds(Collective kind, int64_t bytes, const Mesh& mesh, const Axes& axes) const;
  double collective_seconds(Collective kind, int64_t bytes, std::span<const int> ranks) const;

 private:
  std::shared_ptr<const Machine> machine_, without_latency_;
  FlopsPerSecond products_;
};

}  // namespace trainctl
