// The names that other tools (PyTorch, Keras, Hugging Face, Lightning, DeepSpeed, Megatron, Axolotl, MindSpore) have
// for what a job says. Errors and `trainctl translate` read this one table.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/field.h"

namespace trainctl {

enum class NameKind : uint8_t {
  field,        ///< a field of the job, or an option of another tool
  layer,        ///< a layer type
  layer_field,  ///< a field of a layer
  loss,
  optimizer,
  metric,
  dataset,    ///< dataset.type
  transform,  ///< a transform of samples
  value,      ///< a value of a field
};
std::string_view to_string(NameKind kind);

struct ForeignName {
  NameKind kind = NameKind::field;
  std::string_view names;    ///< separated by blanks; in any case, with or without '_' and '-'
  std::string_view ours;     ///< a path of a field, a type, or a value; empty: there is no equivalent
  std::string_view example;  ///< how to write it: "dataset: {batch: 64}"; fields: also the value on the command line
  std::string_view note = {};
};

std::span<const ForeignName> foreign_names();
/// The parts of that table.
std::span<const ForeignName> foreign_fields();
std::span<const ForeignName> foreign_layers();
std::span<const ForeignName> foreign_types();

/// Finds a name of another tool. Returns null for an unknown name. A name that begins with a module ("nn.",
/// "tf.keras.layers.") is known without it.
const ForeignName* find_foreign(NameKind kind, std::string_view name);
/// All entries with this name, whatever their kind.
std::vector<const ForeignName*> find_foreign(std::string_view name);

/// "write dataset: {batch: 64}", with the note; "" for an unknown name.
std::string foreign_hint(NameKind kind, std::string_view name);
std::string hint_of(const ForeignName& name);

/// Returns the entry of `names` that other tools spell `word`; "" if there is none. The spelling may differ in case and
/// in '_', may follow the name of a module ("nn.Dropout"), and may end in a kind ("HuberLoss", "OneCycleLR").
std::string same_name(std::string_view word, const std::vector<std::string>& names);

/// Words that a field accepts in place of one of its choices: gpu for cuda.
std::vector<std::string> accepted_synonyms(const Field& field);
/// The choice that such a word stands for; "" for any other word.
std::string accepted_synonym(const Field& field, const std::string& word);

}  // namespace trainctl
