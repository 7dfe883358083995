// The angles of rotary, for any context extension that Hugging Face's config.json names in rope_scaling.
#include "engine/ops/rotary/rotary_angles.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/ops/expect.h"

namespace trainctl {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

double original_length(const Attrs& attrs) {
  return static_cast<double>(attrs.integer("original_max_position_embeddings"));
}

/// Llama 3: a pair that turns often within the original length keeps its rate, one that turns rarely is slowed down by
/// `factor`, and between them the rate is interpolated.
double llama3_rate(const Attrs& attrs, double rate) {
  const double factor = attrs.number("factor"), low = attrs.number("low_freq_factor");
  const double turns = original_length(attrs) * rate / kTwoPi;
  const double kept = std::clamp((turns - low) / (attrs.number("high_freq_factor") - low), 0.0, 1.0);
  return (1 - kept) * rate / factor + kept * rate;
}

/// YaRN (Peng et al. 2023): the pairs between two numbers of turns are interpolated linearly by their index.
class Yarn {
 public:
  Yarn(const Attrs& attrs, int64_t features) : factor_(attrs.number("factor")) {
    const auto pair_with = [&](double turns) {
      return static_cast<double>(features) * std::log(original_length(attrs) / (turns * kTwoPi)) /
             (2 * std::log(attrs.number("base")));
    };
    low_ = pair_with(attrs.number("beta_fast", 32)), high_ = pair_with(attrs.number("beta_slow", 1));
    if (attrs.flag("truncate", true)) low_ = std::floor(low_), high_ = std::ceil(high_);
    low_ = std::max(low_, 0.0), high_ = std::min(high_, static_cast<double>(features - 1));
    if (low_ == high_) high_ += 0.001;
  }
  double rate(size_t pair, double rate) const {
    const double slowed = std::clamp((static_cast<double>(pair) - low_) / (high_ - low_), 0.0, 1.0);
    return rate / factor_ * slowed + rate * (1 - slowed);
  }

 private:
  double factor_, low_, high_;
};

double yarn_magnitude(const Attrs& attrs) {
  const double factor = attrs.number("factor");
  const auto of = [factor](double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1; };
  if (attrs.number("mscale", 0) == 0 || attrs.number("mscale_all_dim", 0) == 0) return of(1);
  return of(attrs.number("mscale")) / of(attrs.number("mscale_all_dim"));
}

double longrope_magnitude(const Attrs& attrs) {
  const double factor = attrs.number("factor");
  return factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(original_length(attrs)));
}

/// The fields that belong to one scaling.
struct Scaling {
  const char* name;
  std::vector<std::string> needs, takes = {};
};

const std::vector<Scaling>& scalings() {
  const std::string length = "original_max_position_embeddings";
  static const std::vector<Scaling> all = {
      {"none", {}},
      {"linear", {"factor"}},
      {"llama3", {"factor", "low_freq_factor", "high_freq_factor", length}},
      {"yarn",
       {"factor", length},
       {"beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim"}},
      {"longrope", {"factor", length, "short_factor", "long_factor"}, {"attention_factor"}}};
  return all;
}

const Scaling& scaling_of(const Attrs& attrs) {
  const std::string name = attrs.text("scaling", "none");
  for (const Scaling& scaling : scalings())
    if (scaling.name == name) return scaling;
  shape_error(fmt::format("rotary: there is no scaling '{}'", name));
}

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

RotaryAngles rotary_angles(const Attrs& attrs, int64_t features) {
  RotaryAngles angles;
  for (int64_t i = 0; i < features / 2; ++i)
    angles.rates.push_back(
        std::pow(attrs.number("base", 10000.0), -2.0 * static_cast<double>(i) / static_cast<double>(features)));
  const std::string scaling = scaling_of(attrs).name;
  if (scaling == "linear") {
    for (double& rate : angles.rates) rate /= attrs.number("factor");
  } else if (scaling == "llama3") {
    for (double& rate : angles.rates) rate = llama3_rate(attrs, rate);
  } else if (scaling == "yarn") {
    const Yarn yarn(attrs, features);
    for (size_t i = 0; i < angles.rates.size(); ++i) angles.rates[i] = yarn.rate(i, angles.rates[i]);
    angles.magnitude = attrs.number("attention_factor", yarn_magnitude(attrs));
  } else if (scaling == "longrope") {
    const std::vector<double>& factors = attrs.numbers("factors");
    check(factors.size() == angles.rates.size(), "longrope has one factor for each pair");
    for (size_t i = 0; i < factors.size(); ++i) angles.rates[i] /= factors[i];
    angles.magnitude = attrs.number("attention_factor", longrope_magnitude(attrs));
  }
  return angles;
}

std::vector<Field> rotary_scaling_fields() {
  std::vector<std::string> names;
  for (const Scaling& scaling : scalings()) names.emplace_back(scaling.name);
  return {
      text("scaling",
           "Context extension method, with the fields and formulas of rope_scaling in Hugging Face's config.json.")
          .one_of(names)
          .defaults(std::string("none")),
      number("factor",
             "With linear, llama3 and yarn, the factor by which the context is extended. With longrope, the extended "
             "length divided by the original length.")
          .above(0),
      number("low_freq_factor",
             "With llama3, pairs that complete fewer rotations than this within the original length are slowed down.")
          .above(0),
      number("high_freq_factor",
             "With llama3, pairs that complete more rotations than this within the original length are not changed.")
          .above(0),
      integer("original_max_position_embeddings", "Context length used in pretraining, for llama3, yarn and longrope.")
          .at_least(2)
          .at_most(kMaxSize),
      number("beta_fast",
             "With yarn, pairs that complete more rotations than this within the original length are not changed. If "
             "omitted, 32.")
          .above(0),
      number("beta_slow",
             "With yarn, pairs that complete fewer rotations than this within the original length are slowed down. If "
             "omitted, 1.")
          .above(0),
      make_field("truncate", FieldKind::flag,
                 "With yarn, whether the boundaries between these groups of pairs are rounded to whole pairs. If "
                 "omitted, true; gpt-oss uses false."),
      number("attention_factor",
             "With yarn and longrope, the factor by which the rotated features are multiplied. If omitted, it is "
             "computed from factor.")
          .above(0),
      number("mscale", "With yarn, determines attention_factor together with mscale_all_dim (DeepSeek).").above(0),
      number("mscale_all_dim", "With yarn, determines attention_factor together with mscale (DeepSeek).").above(0),
      numbers("short_factor",
              "With longrope, the divisor of each pair's rotation rate for samples of at most the original length.")
          .above(0),
      numbers("long_factor",
              "With longrope, the divisor of each pair's rotation rate for samples longer than the original length.")
          .above(0)};
}

std::vector<FieldFault> rotary_scaling_faults(const Attrs& attrs) {
  const Scaling& scaling = scaling_of(attrs);
  std::vector<FieldFault> found;
  for (const std::string& field : scaling.needs) {
    if (!attrs.has(field))
      found.push_back({"scaling", fmt::format("scaling: {} requires '{}'", scaling.name, field),
                       "copy it from rope_scaling in the model's config.json"});
  }
  for (const Field& field : rotary_scaling_fields()) {
    if (field.name != "scaling" && attrs.has(field.name) && !has(scaling.needs, field.name) &&
        !has(scaling.takes, field.name))
      found.push_back({field.name, fmt::format("scaling: {} has no field '{}'", scaling.name, field.name),
                       "set another scaling, or remove the field"});
  }
  if (scaling.name == std::string("llama3") && found.empty() &&
      attrs.number("low_freq_factor") >= attrs.number("high_freq_factor"))
    found.push_back({"low_freq_factor", "low_freq_factor must be less than high_freq_factor", ""});
  if (scaling.name == std::string("yarn") && attrs.number("base", 10000.0) <= 1)
    found.push_back({"base", "scaling: yarn requires a base above 1", ""});
  return found;
}

Attrs rotary_scaling_attrs(const Attrs& attrs, int64_t features, int64_t rows) {
  const Scaling& scaling = scaling_of(attrs);
  Attrs of_op;
  if (scaling.needs.empty()) return of_op;
  of_op.set("scaling", std::string(scaling.name));
  for (const auto* names : {&scaling.needs, &scaling.takes}) {
    for (const std::string& name : *names)
      if (attrs.has(name) && name != "short_factor" && name != "long_factor") of_op.set(name, *attrs.find(name));
  }
  if (!has(scaling.needs, "long_factor")) return of_op;
  const bool is_long = rows > attrs.integer("original_max_position_embeddings");
  const char* list = is_long ? "long_factor" : "short_factor";
  const std::vector<double>& factors = attrs.numbers(list);
  if (static_cast<int64_t>(factors.size()) != features / 2)
    throw ShapeError(fmt::format("rotary: {} has {} factors, expected {}, one for each pair of rotated features", list,
                                 factors.size(), features / 2),
                     list);
  of_op.set("factors", factors);
  return of_op;
}

}  // namespace trainctl
