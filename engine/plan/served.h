// The parameters of a plan that its parameter servers own, and how the servers answer.
#pragma once

#include <algorithm>

#include "engine/plan/plan.h"

namespace trainctl {

/// True if the workers run in step and all_reduce everything but the tables, which the servers own.
inline bool serves_tables_alone(const Plan& plan) {
  return plan.servers > 0 && !plan.is_asynchronous() && !plan.tables.empty();
}

/// True if the servers own the weights: buckets are pushed and pulled.
inline bool serves_weights(const Plan& plan) { return plan.servers > 0 && !serves_tables_alone(plan); }

/// True if the servers are event loops (engine/train/servers) that answer one worker at a time.
inline bool serves_by_event(const Plan& plan) { return plan.is_asynchronous() || serves_tables_alone(plan); }

inline int num_workers(const Plan& plan) { return plan.is_asynchronous() ? plan.own_workers : plan.ranks; }

/// The number of pushes to each server per step of the run.
inline int pushes_per_step(const Plan& plan) { return serves_tables_alone(plan) ? plan.ranks : 1; }

inline bool is_table(const Plan& plan, TensorId tensor) {
  return std::find(plan.tables.begin(), plan.tables.end(), tensor) != plan.tables.end();
}

}  // namespace trainctl
