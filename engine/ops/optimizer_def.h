// Everything that the job file, its reference, the compiler and the trainer know about one optimizer. It is in the
// folder of its kernel (adam/adam.cpp defines adam_optimizer) and is listed in its OpFamily.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/entry_types.h"
#include "engine/ops/kernel.h"
#include "engine/ops/kernel_def.h"

namespace trainctl {

/// `settings` are the values of `fields`, with defaults filled in.
struct OptimizerDef {
  const char* name;  ///< the `type` of a job file
  std::vector<Field> fields = {};
  /// Checks between fields that go beyond their ranges; null: none.
  std::vector<FieldFault> (*faults)(const Attrs& settings) = nullptr;
  /// Fields that a group of parameters cannot set for itself: those that fill_scalars reads, once per step for all.
  std::vector<std::string> same_in_groups = {};

  /// The kernel of the update. in: gradient, (norm of all gradients, squared [1]); out: weight, each state, (bf16
  /// copy of the weight). It also gets the attr clip_norm, and those of optimizer_options() where the job asks for
  /// them. A skipped step still counts as an update of fill_scalars.
  const KernelDef* kernel;
  Attrs (*kernel_attrs)(const Attrs& settings);

  /// Names of the states kept per weight from step to step: each f32, of the weight's size, initially 0.
  std::vector<std::string> (*states)(const Attrs& settings);

  /// True if the update is only weight -= learning_rate * gradient, so that a kernel that computes a gradient can
  /// take the step itself (EpilogueStep::descend). Null: never.
  bool (*is_plain_step)(const Attrs& settings) = nullptr;

  /// Fills in the StepScalars that the kernel reads besides the learning rate; `update` counts from 1. Null: none.
  void (*fill_scalars)(const Attrs& settings, int64_t update, StepScalars& scalars) = nullptr;
};

/// Every optimizer, in the order of the reference.
std::span<const OptimizerDef* const> all_optimizers();
/// Null if there is none of that name.
const OptimizerDef* find_optimizer(std::string_view name);
/// The same, but the name must exist.
const OptimizerDef& get_optimizer(std::string_view name);

/// An optimizer with the settings of a job.
struct Optimizer {
  Optimizer(std::string_view type, const Attrs& given)
      : def(get_optimizer(type)), settings(with_defaults(given, def.fields)) {}

  const OptimizerDef& def;
  const Attrs settings;

  Attrs kernel_attrs() const { return def.kernel_attrs(settings); }
  std::vector<std::string> states() const { return def.states(settings); }
  bool is_plain_step() const { return def.is_plain_step && def.is_plain_step(settings); }
  void fill_scalars(int64_t update, StepScalars& scalars) const {
    if (def.fill_scalars) def.fill_scalars(settings, update, scalars);
  }
};

/// KernelExample::optional of an update kernel: what the compiler sets besides kernel_attrs and clip_norm.
/// clip_value: the largest absolute value of a gradient's element. skip_not_finite: the step changes nothing if the
/// squared norm of all gradients, then an input, is not finite.
inline Attrs optimizer_options() {
  return {{"learning_rate_scale", 0.5}, {"clip_value", 1.0}, {"skip_not_finite", true}};
}

/// Shared by all optimizers.
inline Field weight_decay_field() {
  return number("weight_decay",
                "Factor of the weight that is added to the gradient (L2 penalty); adamw and lion: decoupled "
                "weight decay.")
      .defaults(0.0)
      .at_least(0);
}

}  // namespace trainctl
