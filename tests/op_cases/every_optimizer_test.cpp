// Tests one update of each optimizer through all of its kernels: one kernel for most optimizers, four for adafactor.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/ops/kernel.h"
#include "engine/ops/optimizer_def.h"
#include "engine/ops/random.h"

namespace trainctl {
namespace {

constexpr int64_t kUpdatedRows = 5, kUpdatedCols = 7, kUpdatedWeights = kUpdatedRows * kUpdatedCols;

using UpdateFloats = std::vector<float>;

UpdateFloats random_update_floats(uint64_t key) {
  UpdateFloats values(kUpdatedWeights);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 2.0f * philox_uniform(key, i, 0) - 1.0f;
  return values;
}

double length_of(const UpdateFloats& values) {
  double squares = 0;
  for (const float x : values) squares += double{x} * x;
  return std::sqrt(squares);
}

TensorArg update_arg(UpdateFloats& values, DType dtype = DType::f32) {
  const Shape shape{static_cast<int64_t>(values.size())};
  return {values.data(), dtype, shape, shape, {0}};
}

/// The optimizers of the list, and the optimizers that update parameters for which they are not suited.
std::vector<const OptimizerDef*> optimizers_and_companions() {
  std::vector<const OptimizerDef*> all;
  for (const OptimizerDef* def : all_optimizers()) {
    all.push_back(def);
    if (def->companion != nullptr) all.push_back(def->companion);
  }
  return all;
}

/// The weights of one parameter and their optimizer states.
struct UpdatedParameter {
  const Optimizer& optimizer;
  UpdateFloats weights = random_update_floats(1);
  std::vector<UpdateFloats> states;

  UpdatedParameter(const Optimizer& of, float state) : optimizer(of) {
    states.assign(of.states().size(), UpdateFloats(kUpdatedWeights, state));
    if (is_factored()) states.emplace_back(factors(), state);
  }
  bool operator==(const UpdatedParameter& other) const { return weights == other.weights && states == other.states; }

  bool is_factored() const { return optimizer.def.sums != nullptr && optimizer.def.sums->states != nullptr; }
  size_t factors() const {
    int64_t elements = 0;
    for (const auto& [name, shape] : optimizer.def.sums->states({kUpdatedRows, kUpdatedCols}))
      elements += num_elements(shape);
    return static_cast<size_t>(elements);
  }

  /// Updates the parameter. `given` has the gradient, and the squared norm of all gradients if the attributes need it.
  void update(std::vector<TensorArg> given, Attrs attrs, const StepScalars& scalars) {
    if (optimizer.def.sums != nullptr) return update_with_sums(given, attrs, scalars);
    std::vector<TensorArg> out = weights_and_states();
    UpdateFloats work;
    if (optimizer.needs_whole_parameters()) {
      const std::vector<Ints> parameters = {{0, 1, kUpdatedWeights}};
      attrs.set("parameters", parameters);
      if (optimizer.def.work_elements != nullptr) {
        work.resize(static_cast<size_t>(optimizer.def.work_elements(parameters)));
        out.push_back(update_arg(work, DType::i32));
      }
    }
    run(optimizer.def.kernel->name, given, out, attrs, scalars);
  }

 private:
  static void run(const char* kernel, std::vector<TensorArg> in, std::vector<TensorArg> out, const Attrs& attrs,
                  const StepScalars& scalars) {
    find_cpu_kernel(kernel)->prepare({std::move(in), std::move(out), attrs, &scalars})();
  }

  std::vector<TensorArg> weights_and_states() {
    std::vector<TensorArg> out = {update_arg(weights)};
    for (size_t s = 0; s < optimizer.states().size(); ++s) out.push_back(update_arg(states[s]));
    return out;
  }

  /// One update by an optimizer that needs sums over the parameter (adafactor). The kernels compute the sums, the
  /// states, the norms, then the update itself. `given` has the gradient and the squared norm.
  void update_with_sums(const std::vector<TensorArg>& given, Attrs attrs, const StepScalars& scalars) {
    const ParameterSums& def = *optimizer.def.sums;
    Ints place{0, 0, 1, kUpdatedWeights, kUpdatedWeights, 0};
    if (is_factored()) place = {0, 0, 2, kUpdatedRows, kUpdatedCols, kUpdatedRows, kUpdatedCols, 0, 0};
    attrs.set("parameters", std::vector<Ints>{place});
    attrs.set("first", int64_t{0});
    UpdateFloats sums(is_factored() ? factors() + 1 : 1), norms(1), means(1);
    const auto with = [&given](std::vector<TensorArg> more) {
      more.insert(more.begin(), given.begin(), given.end());
      return more;
    };
    run(def.sums->name, with({update_arg(weights)}), {update_arg(sums)}, attrs, scalars);
    // The kernel of the states reads the sums in place of the gradient.
    std::vector<TensorArg> of_states = {update_arg(sums)};
    of_states.insert(of_states.end(), given.begin() + 1, given.end());
    std::vector<TensorArg> read;
    if (is_factored()) {
      run(def.states_update->name, of_states, {update_arg(states.back()), update_arg(means, DType::i32)}, attrs,
          scalars);
      read = {update_arg(states.back()), update_arg(means)};
    }
    const bool has_own = !is_factored();
    run(def.norms->name, with(has_own ? std::vector<TensorArg>{update_arg(states[0])} : read), {update_arg(norms)},
        attrs, scalars);
    std::vector<TensorArg> in = with({update_arg(sums), update_arg(norms)});
    in.insert(in.end(), read.begin(), read.end());
    run(optimizer.def.kernel->name, in, weights_and_states(), attrs, scalars);
  }
};

StepScalars first_step(const Optimizer& optimizer, float rate) {
  StepScalars scalars{.learning_rate = rate};
  optimizer.fill_scalars(1, scalars);
  return scalars;
}

Attrs update_attrs_of(const Optimizer& optimizer) {
  Attrs attrs = optimizer.kernel_attrs();
  attrs.set("clip_norm", 0.0);
  return attrs;
}

}  // namespace

TEST_CASE("every optimizer reduces a loss with its defaults, and a plain step is -learning_rate * gradient") {
  for (const OptimizerDef* def : optimizers_and_companions()) {
    CAPTURE(def->name);
    CAPTURE(def->kernel->name);
    const Optimizer optimizer(*def, {});
    UpdatedParameter parameter(optimizer, 0);
    UpdateFloats g = parameter.weights;  // the gradient of sum w^2 / 2 is w
    parameter.update({update_arg(g)}, update_attrs_of(optimizer), first_step(optimizer, 1e-3f));
    CHECK(length_of(parameter.weights) < length_of(g));
    if (!optimizer.is_plain_step()) continue;
    CHECK(parameter.states.empty());
    for (size_t i = 0; i < g.size(); ++i)
      CHECK(parameter.weights[i] == doctest::Approx(g[i] - 1e-3 * g[i]).epsilon(1e-6));
  }
}

TEST_CASE("decoupled weight decay shrinks weights by lr * wd in each step, without a bias from rounding") {
  constexpr float kRate = 1e-3f;
  constexpr int kUpdates = 400;
  for (const char* name : {"adamw", "nadam", "lion", "muon", "adafactor"}) {
    CAPTURE(name);
    const OptimizerDef& def = get_optimizer(name);
    const double decay = 0.0377;  // 1 - 1e-3 * 0.0377 is almost halfway between two f32 numbers
    Attrs settings{{"weight_decay", decay}};
    if (def.name == std::string_view("nadam")) settings.set("decoupled_weight_decay", true);
    const Optimizer optimizer(def, settings);
    UpdatedParameter parameter(optimizer, 0);
    const UpdateFloats start = parameter.weights;
    UpdateFloats g(kUpdatedWeights);
    for (int update = 1; update <= kUpdates; ++update) {
      StepScalars scalars{.learning_rate = kRate};
      optimizer.fill_scalars(update, scalars);
      parameter.update({update_arg(g)}, update_attrs_of(optimizer), scalars);
    }
    const double expected = std::pow(1 - double{kRate} * decay, kUpdates);
    double bias = 0;
    for (size_t i = 0; i < start.size(); ++i)
      bias += (parameter.weights[i] / (expected * start[i]) - 1) / kUpdatedWeights;
    CHECK(std::abs(bias) < 1e-6);
  }
}

TEST_CASE("every optimizer clips by value, divides by the loss scale, and skips a step without a change") {
  for (const OptimizerDef* def : optimizers_and_companions()) {
    CAPTURE(def->name);
    CAPTURE(def->kernel->name);
    const Optimizer optimizer(*def, {});
    const auto updated = [&](UpdateFloats g, float norm, const Attrs& more, float loss_scale = 1) {
      UpdatedParameter parameter(optimizer, 0.25f);
      StepScalars scalars = first_step(optimizer, 1e-2f);
      scalars.loss_scale = loss_scale;
      Attrs attrs = update_attrs_of(optimizer);
      for (const auto& [name, value] : more) attrs.set(name, value);
      UpdateFloats squared = {norm};
      parameter.update({update_arg(g), update_arg(squared)}, attrs, scalars);
      return parameter;
    };
    const UpdateFloats g = random_update_floats(2);
    UpdateFloats bounded = g;
    for (float& x : bounded) x = std::min(std::max(x, -0.1f), 0.1f);
    CHECK(updated(g, 0, {{"clip_value", 0.1}}) == updated(bounded, 0, {}));
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const Attrs skips{{"skip_not_finite", true}};
    CHECK(updated(g, 1, skips) == updated(g, 1, {}));
    CHECK_FALSE(updated(g, 1, skips) == UpdatedParameter(optimizer, 0.25f));
    CHECK(updated(g, kInfinity, skips) == UpdatedParameter(optimizer, 0.25f));
    CHECK(updated(g, std::numeric_limits<float>::quiet_NaN(), skips) == UpdatedParameter(optimizer, 0.25f));
    // The gradients of a scaled loss: a scale that is a power of two changes no bit.
    UpdateFloats scaled = g;
    for (float& x : scaled) x *= 1024;
    for (Attrs attrs : {Attrs{}, Attrs{{"clip_norm", 0.5}}, Attrs{{"clip_value", 0.1}}}) {
      const UpdatedParameter expected = updated(g, 4, attrs);
      attrs.set("unscale", true);
      CHECK(updated(scaled, 4 * 1024 * 1024, attrs, 1024) == expected);
    }
  }
}

}  // namespace trainctl
