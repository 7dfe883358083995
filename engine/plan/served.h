// The part of a plan that its parameter servers hold, and how they answer.
#pragma once

#include <algorithm>

#include "engine/plan/plan.h"

namespace trainctl {

/// The workers run in step and all_reduce everything but the tables, which are on the servers.
inline bool serves_tables_alone(const Plan& plan) {
  return plan.servers > 0 && !plan.is_asynchronous() && !plan.tables.empty();
}

/// The servers hold the weights: buckets are pushed and pulled.
inline bool serves_weights(const Plan& plan) { return plan.servers > 0 && !serves_tables_alone(plan); }

/// The servers are event loops (engine/train/servers) that answer one worker at a time.
inline bool serves_by_event(const Plan& plan) { return plan.is_asynchronous() || serves_tables_alone(plan); }

inline int num_workers(const Plan& plan) { return plan.is_asynchronous() ? plan.own_workers : plan.ranks; }

/// Pushes to each server that make up a step of the run.
inline int pushes_per_step(const Plan& plan) { return serves_tables_alone(plan) ? plan.ranks : 1; }

inline bool is_table(const Plan& plan, TensorId tensor) {
  return std::find(plan.tables.begin(), plan.tables.end(), tensor) != plan.tables.end();
}

}  // namespace trainctl
