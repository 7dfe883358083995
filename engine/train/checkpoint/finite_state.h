// Looks for nan and infinities in the state of a run. The loss of the next step reveals that an update was broken. But
// after the last update, or after an update right before a save, no step follows that would reveal it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>

#include "engine/compile/program.h"
#include "engine/runtime/executor.h"

namespace trainctl {

/// A weight, a running statistic or an optimizer state is nan or infinite, and train.on_nan is stop. Thrown by the
/// ranks that store such a value.
class StateNotFinite : public std::runtime_error {
 public:
  StateNotFinite(const std::string& what, int64_t run_step) : std::runtime_error(what), run_step_(run_step) {}
  int64_t run_step() const { return run_step_; }

 private:
  int64_t run_step_;
};

/// The index of the first element that is nan or infinite. `values` has whole elements and is 4-byte aligned. Elements
/// of type i32 are always finite.
std::optional<int64_t> first_not_finite(std::span<const std::byte> values, DType type);

/// Throws StateNotFinite if the state of this rank has a nan or an infinity. No step may be in flight. `steps` is the
/// number of trained steps.
void require_finite_state(const Program& program, Executor& executor, int64_t steps);

}  // namespace trainctl
