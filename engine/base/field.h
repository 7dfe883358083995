// One key of a job file: its kind, range, default and meaning. Sections of the job are tables of fields (engine/spec);
// layers, losses and optimizers bring their own (engine/ops):
//
//   .fields = {number("slope", "Slope for negative inputs").defaults(0.01).at_least(0).below(1)}
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/attrs.h"

namespace trainctl {

/// Largest size of one dim of a tensor: far beyond any machine, and products of a few still fit an int64_t.
inline constexpr double kMaxSize = 1'000'000'000;
inline constexpr double kMaxDims = 15;

enum class FieldKind : uint8_t {
  flag,
  integer,
  number,
  text,
  choice,         ///< one of `choices`
  ints,           ///< [1, 28, 28]
  numbers,        ///< [0.9, 0.999]; one number stands for a list of one
  int_lists,      ///< [[0, 1], [2, 3]]
  per_dim,        ///< 3, or [3, 5]: one integer stands for a list of one; or one of `choices`
  bytes,          ///< 25GB, 512MiB, 1024
  seconds,        ///< 10s, 2m, 0.5
  section,        ///< a mapping with fields of its own
  words,          ///< [python3, train.py]
  variables,      ///< {NAME: value}
  initial,        ///< {type: normal, std: 0.02}, or a type alone: one of initial_types()
  names,          ///< names of layers
  patterns,       ///< names or globs of layers
  paths,          ///< a path or a list of paths
  transforms,     ///< [hwc2chw], or for several fields of the samples: {image: [hwc2chw], mask: [...]}
  sample_fields,  ///< {image: jpg, features: [a, b]}
  split,          ///< one of `choices`, or {train: 0.9, validation: 0.1}
  metrics,        ///< [accuracy, {type: top_k, k: 5}]
  losses,         ///< [{type: mse, input: layer1, label: size, weight: 0.1}]
  any_names,      ///< [loss, accuracy, top_5]: names that the parser does not look up
  modules,
  layers,
  values,         ///< {name: number, text or flag}: vars, the arguments of a module
  groups,         ///< groups of parameters
  stage_map,      ///< {pattern: stage}
  strategy_map,   ///< {pattern: cuts}
  sources,        ///< {name: data set}: the sources of a mixture
  shares,         ///< {name: number}: the share of each source
  share_changes,  ///< [{step: 1000, mix: {name: number}, ramp: 200}]
  named_paths,    ///< {name: path or list of paths}
  segments,       ///< [{steps: 100, type: linear}, {type: cosine}]: schedules one after the other
  trackers,       ///< [tensorboard, {type: mlflow, to: mlruns}, 'command: ./push.py']
};

/// A job has either a network or a command; some fields belong to one of the two.
enum class JobKind : uint8_t { any, network, command };

struct Section;  // a table of fields; defined by the parser (engine/spec/fields.h)

struct Field {
  std::string name;
  FieldKind kind = FieldKind::text;
  std::string doc;
  bool is_required = false;
  std::optional<Value> fallback;  ///< default of a field that becomes an Attr; absent: none
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_open = false;  ///< min itself is not allowed
  bool max_open = false;
  int length = 0;  ///< lists: the number of items; 0: any
  std::vector<std::string> choices;
  std::vector<std::string> only;  ///< the values of the section's `type` that have this field; empty: all
  JobKind job = JobKind::any;
  std::string stands_for;  ///< section: a bare value stands for a mapping with this one field

  const Section* section = nullptr;
  /// The section's struct inside the enclosing one; `make` creates an optional one, else null.
  void* (*object)(void* enclosing, bool make) = nullptr;
  void (*set)(void* object, const Value& value) = nullptr;
  Value (*get)(const void* object) = nullptr;
  /// paths and any_names: the list that holds the values.
  std::vector<std::string>& (*list)(void* object) = nullptr;
  /// In place of set and get: the Attrs of the section's struct that hold the field under its name.
  Attrs& (*attrs)(void* object) = nullptr;

  Field&& required() && {
    is_required = true;
    return std::move(*this);
  }
  Field&& defaults(Value v) && {
    fallback = std::move(v);
    return std::move(*this);
  }
  Field&& at_least(double v) && {
    min = v;
    return std::move(*this);
  }
  Field&& above(double v) && {
    min = v;
    min_open = true;
    return std::move(*this);
  }
  Field&& at_most(double v) && {
    max = v;
    return std::move(*this);
  }
  Field&& below(double v) && {
    max = v;
    max_open = true;
    return std::move(*this);
  }
  Field&& items(int n) && {
    length = n;
    return std::move(*this);
  }
  Field&& one_of(std::vector<std::string> v) && {
    kind = FieldKind::choice;
    choices = std::move(v);
    return std::move(*this);
  }
  Field&& for_type(std::vector<std::string> v) && {
    only = std::move(v);
    return std::move(*this);
  }
  Field&& of(JobKind k) && {
    job = k;
    return std::move(*this);
  }
  Field&& is(FieldKind k) && {
    kind = k;
    return std::move(*this);
  }
  Field&& shorthand(std::string v) && {
    stands_for = std::move(v);
    return std::move(*this);
  }
};

Field make_field(std::string name, FieldKind kind, std::string doc);
Field flag(std::string name, bool fallback, std::string doc);
Field integer(std::string name, std::string doc);
Field number(std::string name, std::string doc);
Field text(std::string name, std::string doc);
Field ints(std::string name, std::string doc);
Field numbers(std::string name, std::string doc);
Field int_lists(std::string name, std::string doc);
/// One integer for all dims, or one for each; or one of `words`.
Field per_dim(std::string name, std::string doc, std::vector<std::string> words = {});

/// A field that is a mapping becomes several Attrs: "init.type", "init.std".
std::string nested_attr(const std::string& field, const std::string& inner);
/// The attrs nested in `field`, under their inner names: "type", "std".
Attrs nested_attrs(const Attrs& attrs, const std::string& field);
/// A field "router.score" is the key `score` of the mapping `router`: returns "router". "" for other fields.
std::string mapping_of(const Field& field);

/// The values of these fields and no others: those given, and the defaults of the rest.
Attrs with_defaults(const Attrs& given, const std::vector<Field>& fields);

std::vector<std::string> names_of(const std::vector<Field>& fields);

}  // namespace trainctl
