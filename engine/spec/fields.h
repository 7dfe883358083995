// The field table: every key that a job file may hold, with its kind, range, default and meaning.
// Parsing, unknown-key errors, defaults, `trainctl schema` and docs/job.md all come from it.
//
// Sections fill in the structs of job_spec.h, whose initialisers are the defaults. The fields of layers, losses,
// optimizers and transforms become Attrs, with the default of the field.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/entry_types.h"
#include "engine/base/field.h"

namespace trainctl {

/// The elements of a whole batch, over all ranks: their bytes fit an int64_t. The planner checks what one rank may
/// hold.
inline constexpr int64_t kMaxBatchElements = int64_t{1} << 58;

/// Largest height and width of an image after {resize: …}.
inline constexpr double kMaxImageSide = 65'536;

/// Largest number of steps of a run: they are counted in 32 bits.
inline constexpr double kMaxSteps = 4'294'967'295;

/// Metrics are read with the loss of each step.
inline constexpr size_t kMaxMetrics = 7;

/// Most entries of dataset.fields.
inline constexpr size_t kMaxSampleFields = 64;

inline constexpr int kMaxRanks = 65'536;
/// Limits of asynchronous parameter servers.
inline constexpr int kMaxStaleness = 1'000'000;
inline constexpr int kMostAsyncWorkers = 256;
inline constexpr int kMostDataWorkers = 1'024;
inline constexpr int kMostPrefetch = 1'024;

/// Largest number of micro-batches: a rank's program contains the work of each of them.
inline constexpr int kMaxMicroBatches = 16'384;
inline constexpr int kMaxHeadPieces = 1024;

struct Section {
  std::string name;
  std::string doc;
  std::vector<Field> fields;
};

/// True if the field may be used in a job of that kind.
inline bool belongs_to(const Field& field, JobKind kind) { return field.job == JobKind::any || field.job == kind; }

/// The whole job: its fields refer to all other sections.
const Section& job_section();

struct FieldAt {
  std::string path;  ///< "launch.ranks"
  const Field* field = nullptr;
};
/// The fields of all sections with this name: "ranks", or "launch.ranks" itself.
std::vector<FieldAt> fields_called(std::string_view name);

/// The field `if` of layers and of uses of modules.
const Field& condition_field();
/// Keys that every layer may have (type, name, inputs, ...), and those of `{module: …}` entries.
const std::vector<Field>& common_layer_fields();
const std::vector<Field>& module_use_fields();

/// Keys that every group of `optimizer.groups` may have besides the optimizer's own fields.
const std::vector<Field>& parameter_group_fields();

const std::vector<EntryType>& transform_types();
/// The field of a transform that a bare value stands for, as in {resize: [28, 28]}: the only one, or the only one that
/// is required. Else null.
const Field* bare_value_field(const EntryType& type);

/// One number of parallel.strategies: the number of shards of a dim.
Field cuts_field();

/// The value of a section's field, `object` being the section's struct: the value that was set, or the default if
/// there is one.
std::optional<Value> value_of(const Field& field, const void* object);
void set_value(const Field& field, void* object, Value value);

/// "a, b and c".
std::string in_words(std::vector<std::string> words, const std::string& last_separator);

/// Returns what a field applies to, if not to everything: "For sgd." or "For jobs with a network."; else "".
std::string scope_text(const Field& field);

/// "512", "true", "relu, gelu": the default as docs show it; "" if there is none.
std::string default_text(const Field& field, const Section* section);

/// The form of the field's values: "integer, at least 1".
std::string kind_text(const Field& field);

}  // namespace trainctl
