// The field table: every key that a job file may hold, with its kind, range, default and meaning.
// Parsing, unknown-key errors, defaults, `trainctl schema` and docs/job.md all come from it.
//
// Sections fill in the structs of job_spec.h, whose initialisers are the defaults. The fields of layers
// and transforms become Attrs, with the default given here.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/attrs.h"

namespace trainctl {

/// Of one dim of a tensor, and of the elements of a whole batch, over all ranks: their bytes fit an int64_t. What one
/// rank may hold is the planner's matter.
inline constexpr double kMaxSize = 1'000'000'000;
inline constexpr int64_t kMaxBatchElements = int64_t{1} << 58;
inline constexpr double kMaxDims = 15;

enum class FieldKind : uint8_t {
  flag,
  integer,
  number,
  text,
  choice,     ///< one of `choices`
  ints,       ///< [1, 28, 28]
  numbers,    ///< [0.9, 0.999]; one number stands for a list of one
  int_lists,  ///< [[0, 1], [2, 3]]
  bytes,      ///< 25GB, 512MiB, 1024
  seconds,    ///< 10s, 2m, 0.5
  section,    ///< a mapping with fields of its own
  words,      ///< [python3, train.py]
  variables,  ///< {NAME: value}
  names,      ///< of layers
  patterns,   ///< names or globs of layers
  transforms,
  modules,
  layers,
  stage_map,     ///< {pattern: stage}
  strategy_map,  ///< {pattern: cuts}
};

/// A job has either a network or a command; some fields belong to one of the two.
enum class JobKind : uint8_t { any, network, command };

struct Section;

struct Field {
  std::string name;
  FieldKind kind = FieldKind::text;
  std::string doc;
  bool is_required = false;
  std::optional<Value> fallback;  ///< of layers and transforms; absent: no value
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_open = false;  ///< min itself is not allowed
  bool max_open = false;
  int length = 0;  ///< lists: so many items; 0: any number
  std::vector<std::string> choices;
  std::vector<std::string> only;  ///< belongs to these values of the section's `type` alone
  JobKind job = JobKind::any;
  std::string stands_for;  ///< section: a bare value stands for a mapping with this one field

  const Section* section = nullptr;
  /// The section's struct inside the enclosing one; `make` creates an optional one, else null.
  void* (*object)(void* enclosing, bool make) = nullptr;
  void (*set)(void* object, const Value& value) = nullptr;
  Value (*get)(const void* object) = nullptr;

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

struct Section {
  std::string name;
  std::string doc;
  std::vector<Field> fields;
};

/// A kind of layer, loss or transform: what may stand beside `type`.
struct EntryType {
  std::string name;
  std::string doc;
  std::vector<Field> fields;
  int min_inputs = 1, max_inputs = 1;  ///< layers
  bool collective = false;             ///< layers of hybrid_parallel alone
};

/// Whether the field may stand in a job of that kind.
inline bool belongs_to(const Field& field, JobKind kind) { return field.job == JobKind::any || field.job == kind; }

/// The whole job: its fields lead to all other sections.
const Section& job_section();

/// Every layer type, in the order of the reference.
const std::vector<EntryType>& layer_types();
const EntryType* find_layer_type(std::string_view name);

/// Keys that every layer may have (type, name, inputs), and those of `{module: …}` entries.
const std::vector<Field>& common_layer_fields();
const std::vector<Field>& module_use_fields();

const std::vector<EntryType>& transform_types();
const EntryType* find_transform_type(std::string_view name);

/// What a field is for, where not for all: "For sgd." or "For jobs with a network."; else "".
std::string scope_text(const Field& field);

/// "512", "true", "relu, gelu": the default as docs show it; "" where there is none.
std::string default_text(const Field& field, const Section* section);

/// What a value of the field looks like: "integer, at least 1".
std::string kind_text(const Field& field);

std::vector<std::string> names_of(const std::vector<Field>& fields);
std::vector<std::string> names_of(const std::vector<EntryType>& types);

}  // namespace trainctl
