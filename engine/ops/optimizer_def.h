// Everything that the job file, its reference, the compiler and the trainer know about one optimizer. It is in the
// folder of its kernel (adam/adam.cpp defines adam_optimizer) and is listed in its OpFamily.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/entry_types.h"
#include "engine/ops/kernel.h"
#include "engine/ops/kernel_def.h"

namespace trainctl {

/// The state whose values validations and exports use in place of the weights: that of optimizer.average, or of an
/// optimizer that computes the average itself (schedule_free_adamw).
inline constexpr std::string_view kAverageSlot = "average";
/// The slot of the momentum of parallel.outer. Its weights are in kAverageSlot: like an average, validations and
/// exports use them in place of the weights.
inline constexpr std::string_view kOuterMomentumSlot = "outer_momentum";

/// An optimizer whose updates use sums over all elements of a parameter, even where a rank has only a part of it. Its
/// kernels have the attrs of the update, and `parameters` and `first` (placed_parameters.h). Ranks that share the
/// parameters add up the sums, and then the norms, before the next kernel reads them.
struct ParameterSums {
  /// in: gradient, (squared norm of all gradients), weight; out: for each parameter the elements of `states`, and one.
  const KernelDef* sums;
  /// in: those sums, (squared norm); out: the states of all parameters, their means. Null: there are no `states`.
  const KernelDef* states_update;
  /// in: gradient, (squared norm), then OptimizerDef::states or `states` and means; out: one number per parameter.
  const KernelDef* norms;
  /// States whose shapes differ from the parameter's, which every rank has as a whole. Null: none.
  std::vector<std::pair<std::string, Shape>> (*states)(const Shape& parameter) = nullptr;
  /// The number of means of those states.
  int64_t (*means)(const Shape& parameter) = nullptr;
};

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

  /// Names of the states kept per weight from step to step: each is f32, has the weight's size and is initially 0.
  std::vector<std::string> (*states)(const Attrs& settings);

  /// True if the update is only weight -= learning_rate * gradient, so that a kernel that computes a gradient can
  /// take the step itself (EpilogueStep::descend). Null: never.
  bool (*is_plain_step)(const Attrs& settings) = nullptr;

  /// The update of a parameter depends on all of its elements. Its kernel has the attr `parameters`: for each shard of
  /// the bucket a list of first element, rows and columns of each parameter in it, and no parameter is in two shards.
  bool (*needs_whole_parameters)(const Attrs& settings) = nullptr;
  /// Not null: the kernel of the update gets, after the gradient and the squared norm, the sums, the norms, and
  /// ParameterSums::states and their means.
  const ParameterSums* sums = nullptr;
  /// The optimizer of parameters that this one does not suit, which reads its own fields in the same settings. Null:
  /// all parameters suit.
  const OptimizerDef* companion = nullptr;
  /// True if a parameter of this shape, which is read by kernels of products alone (`is_product`), is updated by this
  /// optimizer, not by its companion.
  bool (*suits)(const Attrs& settings, const Shape& shape, bool is_product) = nullptr;

  /// It averages the weights itself (a state kAverageSlot): StepScalars::average_rate is the square of the highest
  /// learning rate so far divided by the sum of those squares over all updates.
  bool averages_by_rate = false;
  /// Memory that the update of a shard uses only while it runs, in elements of 4 bytes; an i32 output after the states.
  /// `parameters`: as in the attr of that name. Null: none.
  int64_t (*work_elements)(const std::vector<Ints>& parameters) = nullptr;

  /// Fills in the StepScalars that the kernel reads besides the learning rate; `update` counts from 1. Null: none.
  void (*fill_scalars)(const Attrs& settings, int64_t update, StepScalars& scalars) = nullptr;
};

/// Parameter servers have parts of parameters, and no averages.
inline bool fits_servers(const OptimizerDef& def) {
  return def.needs_whole_parameters == nullptr && def.sums == nullptr && !def.averages_by_rate;
}

/// Every optimizer, in the order of the reference.
std::span<const OptimizerDef* const> all_optimizers();
/// Null if there is none of that name.
const OptimizerDef* find_optimizer(std::string_view name);
/// The same, but the name must exist.
const OptimizerDef& get_optimizer(std::string_view name);

/// An optimizer with the settings of a job.
struct Optimizer {
  Optimizer(std::string_view type, const Attrs& given) : Optimizer(get_optimizer(type), given) {}
  Optimizer(const OptimizerDef& of, const Attrs& given) : def(of), settings(with_defaults(given, of.fields)) {}

  const OptimizerDef& def;
  const Attrs settings;

  Attrs kernel_attrs() const { return def.kernel_attrs(settings); }
  std::vector<std::string> states() const { return def.states(settings); }
  bool needs_whole_parameters() const { return def.needs_whole_parameters && def.needs_whole_parameters(settings); }
  bool is_plain_step() const { return def.is_plain_step && def.is_plain_step(settings); }
  void fill_scalars(int64_t update, StepScalars& scalars) const {
    if (def.fill_scalars) def.fill_scalars(settings, update, scalars);
  }
};

/// KernelExample::optional of an update kernel: what the compiler sets besides kernel_attrs and clip_norm.
/// clip_value: the largest absolute value of a gradient's element. skip_not_finite: the step changes nothing if the
/// squared norm of all gradients, then an input, is not finite. unscale: gradients and their norm are those of the loss
/// times StepScalars::loss_scale.
inline Attrs optimizer_options() {
  return {{"learning_rate_scale", 0.5}, {"clip_value", 1.0}, {"skip_not_finite", true}, {"unscale", true}};
}

/// The same for a kernel that needs whole parameters and has the field adapt.
inline Attrs layerwise_options() {
  Attrs options = optimizer_options();
  options.set("adapt", true);
  return options;
}

inline Field adapt_field() {
  return flag("adapt", true,
              "Adapt the rate to the norms of the parameter. Usually false for a group of biases and norms.");
}

/// Shared by all optimizers.
inline Field weight_decay_field() {
  return number("weight_decay",
                "Factor of the weight that is added to the gradient (L2 penalty); adamw, lion, muon, adafactor "
                "and schedule_free_adamw: decoupled weight decay.")
      .defaults(0.0)
      .at_least(0);
}

}  // namespace trainctl
