// The initial values of a layer's weight or bias, from its field `init` or `bias_init`. Names and formulas are those of
// torch.nn.init.
#include "engine/ops/initial_values.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/base/entry_types.h"
#include "engine/base/text.h"
#include "engine/ops/expect.h"

namespace trainctl {
namespace {

struct InitialType {
  EntryType entry;
  Init::Kind kind = Init::Kind::constant;
  bool needs_fans = false;
  /// The one parameter of the distribution: the value of a constant, the standard deviation of a normal distribution,
  /// or the bound of a uniform one.
  double (*value)(const Attrs& attrs, const Fans& fans);
};

double kaiming_gain(const Attrs& attrs) {
  if (attrs.has("gain")) return attrs.number("gain");
  const std::string after = attrs.text("nonlinearity");
  const double slope = attrs.number("negative_slope");
  if (after == "relu") return std::sqrt(2.0);
  if (after == "leaky_relu") return std::sqrt(2.0 / (1.0 + slope * slope));
  if (after == "tanh") return 5.0 / 3.0;
  return after == "selu" ? 0.75 : 1.0;
}

double kaiming_std(const Attrs& attrs, const Fans& fans) {
  return kaiming_gain(attrs) / std::sqrt(static_cast<double>(attrs.text("fan") == "out" ? fans.out : fans.in));
}

double xavier_std(const Attrs& attrs, const Fans& fans) {
  return attrs.number("gain") * std::sqrt(2.0 / static_cast<double>(fans.in + fans.out));
}

/// The bound of the uniform distribution with this standard deviation.
double bound_of(double deviation) { return std::sqrt(3.0) * deviation; }

std::vector<Field> kaiming_fields() {
  return {text("fan", "in preserves the variance of the forward pass, out that of the backward pass.")
              .one_of({"in", "out"})
              .defaults(std::string("in")),
          text("nonlinearity", "Activation after the layer; determines the gain.")
              .one_of({"linear", "sigmoid", "tanh", "relu", "leaky_relu", "selu"})
              .defaults(std::string("leaky_relu")),
          number("negative_slope", "Negative slope of leaky_relu.").defaults(0.0),
          number("gain", "Gain, in place of nonlinearity.").above(0)};
}

std::vector<Field> xavier_fields() {
  return {number("gain", "Factor of the standard deviation.").defaults(1.0).above(0)};
}

const std::vector<InitialType>& types() {
  using Kind = Init::Kind;
  static const std::vector<InitialType> all = {
      {{"normal",
        "Normal distribution with mean 0.",
        {number("std", "Standard deviation.").defaults(1.0).above(0),
         integer("depth",
                 "Divides the standard deviation by sqrt(2 depth), as GPT-2 does for the last layer of both residual "
                 "branches of its blocks.")
             .at_least(1)
             .at_most(kMaxSize)}},
       Kind::normal,
       false,
       [](const Attrs& attrs, const Fans&) {
         const double depth = attrs.has("depth") ? static_cast<double>(attrs.integer("depth")) : 0.5;
         return attrs.number("std") / std::sqrt(2.0 * depth);
       }},
      {{"uniform",
        "Uniform distribution in [-bound, bound).",
        {number("bound", "Upper bound of the values.").defaults(1.0).above(0)}},
       Kind::uniform,
       false,
       [](const Attrs& attrs, const Fans&) { return attrs.number("bound"); }},
      {{"zeros", "All zeros.", {}}, Kind::constant, false, [](const Attrs&, const Fans&) { return 0.0; }},
      {{"ones", "All ones.", {}}, Kind::constant, false, [](const Attrs&, const Fans&) { return 1.0; }},
      {{"constant", "The same value everywhere.", {number("value", "Value of every element.").required()}},
       Kind::constant,
       false,
       [](const Attrs& attrs, const Fans&) { return attrs.number("value"); }},
      {{"kaiming_uniform", "Uniform distribution with standard deviation gain / sqrt(fan). Not for a bias.",
        kaiming_fields()},
       Kind::uniform,
       true,
       [](const Attrs& attrs, const Fans& fans) { return bound_of(kaiming_std(attrs, fans)); }},
      {{"kaiming_normal", "Normal distribution with standard deviation gain / sqrt(fan). Not for a bias.",
        kaiming_fields()},
       Kind::normal,
       true,
       kaiming_std},
      {{"xavier_uniform",
        "Uniform distribution with standard deviation gain sqrt(2 / (fan in + fan out)). Not for a "
        "bias.",
        xavier_fields()},
       Kind::uniform,
       true,
       [](const Attrs& attrs, const Fans& fans) { return bound_of(xavier_std(attrs, fans)); }},
      {{"xavier_normal",
        "Normal distribution with standard deviation gain sqrt(2 / (fan in + fan out)). Not for a "
        "bias.",
        xavier_fields()},
       Kind::normal,
       true,
       xavier_std}};
  return all;
}

}  // namespace

Fans fans_of(const Shape& weight) {
  Fans fans{weight[1], weight[0]};
  for (size_t d = 2; d < weight.size(); ++d) {
    fans.in *= weight[d];
    fans.out *= weight[d];
  }
  return fans;
}

Init initial_values_of(const Attrs& attrs, const Fans* fans) {
  const std::string name = attrs.text("type");
  for (const InitialType& type : types()) {
    if (type.entry.name != name) continue;
    if (type.needs_fans && fans == nullptr)
      shape_error(fmt::format("{} needs the fans of a weight, which a bias does not have", name));
    return {type.kind, type.value(with_defaults(attrs, type.entry.fields), fans == nullptr ? Fans{} : *fans)};
  }
  shape_error(fmt::format("unknown initial values '{}'; known: {}", name, join(names_of(initial_types()))));
}

Init linear_init(int64_t features) { return {Init::Kind::uniform, 1.0 / std::sqrt(static_cast<double>(features))}; }

Init constant_init(double value) { return {Init::Kind::constant, value}; }

const std::vector<EntryType>& initial_types() {
  static const std::vector<EntryType> all = [] {
    std::vector<EntryType> entries;
    for (const InitialType& type : types()) entries.push_back(type.entry);
    return entries;
  }();
  return all;
}

}  // namespace trainctl
