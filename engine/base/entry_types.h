// The layers, losses, metrics, optimizers and initial values that `type` may name in a job file, with their fields.
//
//   engine/ops   defines each in the folder of its op (LayerDef, LossDef, OptimizerDef) and makes these lists of them
//   engine/base  declares the lists, here
//   engine/spec  parses, validates and documents job files by them; it sees nothing of ops
//
// A program that parses jobs links trainctl_ops; CMake's target of spec sees to that.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/field.h"

namespace trainctl {

/// One thing that is wrong with the values of the fields, found without knowing any shape.
struct FieldFault {
  std::string field, message, hint;
};

/// A layer that another layer of the job adds (EntryType::added).
struct AddedLayer {
  std::string suffix;               ///< its name is that of the layer, a dot and this: "moe.shared_up"
  std::string type;                 ///< a dense layer without units has one unit per output feature of the layer
  std::vector<std::string> inputs;  ///< suffixes of layers added before it, kLayerInput or kLayerOutput
  Attrs attrs = {};
};
inline constexpr const char *kLayerInput = "<input>", *kLayerOutput = "<output>";

struct EntryType {
  std::string name;
  std::string doc;
  std::vector<Field> fields;
  /// Checks conditions that the ranges of single fields cannot express, such as those between fields; null: none.
  std::vector<FieldFault> (*faults)(const Attrs& attrs) = nullptr;

  int min_inputs = 1, max_inputs = 1;  ///< outputs of layers that a layer or a loss reads
  // Layers.
  /// If this field is given, the layer takes min_inputs and has a weight of its own for the rest; else max_inputs.
  std::string weight_field;
  bool collective = false;  ///< only allowed with hybrid_parallel
  /// Returns the number of outputs of a layer with these fields; null: 1. The fields may be wrong.
  int (*num_outputs)(const Attrs& attrs) = nullptr;
  /// Returns the layers that a layer with these fields adds beside itself, whose readers then read the last of them.
  /// Null: none. The fields may be wrong.
  std::vector<AddedLayer> (*added)(const Attrs& attrs) = nullptr;
  // Optimizers.
  std::vector<std::string> same_in_groups = {};  ///< fields that a group of parameters cannot set for itself
  bool averages = false;                         ///< it averages the weights itself
  bool needs_whole_parameters = false;           ///< the update of a parameter depends on all of its elements
  bool sums_over_parameters =
      false;  ///< the same, but ranks that share a parameter add up the contributions of their shards
  bool fits_servers = true;  ///< parameter servers, which have parts of parameters and no averages, can run it
  // Losses.
  bool labels_are_classes = false;  ///< i32, one per row of the prediction; else f32, one per element
  bool has_label = true;            ///< false: it compares the outputs of layers with each other
  bool takes_class_shares = false;  ///< labels may also be f32, the share of each class
  // Metrics.
  /// The name under which one with these fields is reported: "top_5".
  std::string (*reported_as)(const Attrs& fields) = nullptr;

  bool has_field(std::string_view field) const;
};

/// In the order of the reference (docs/job.md). Defined in engine/ops.
const std::vector<EntryType>& layer_types();
const std::vector<EntryType>& loss_types();
const std::vector<EntryType>& metric_types();
const std::vector<EntryType>& optimizer_types();
/// The initial values of a weight or a bias (fields of kind `initial`).
const std::vector<EntryType>& initial_types();

/// Null where there is none of that name.
const EntryType* find_type(const std::vector<EntryType>& types, std::string_view name);
inline const EntryType* find_layer_type(std::string_view name) { return find_type(layer_types(), name); }

std::vector<std::string> names_of(const std::vector<EntryType>& types);

/// The most outputs that a layer has.
inline constexpr int kMaxLayerOutputs = 256;
/// Returns the number of outputs of a layer with these fields, from 1 to kMaxLayerOutputs.
int output_count(const EntryType& type, const Attrs& attrs);

/// Returns the minimum and maximum number of inputs of a layer with these fields.
struct InputCount {
  int least = 1, most = 1;
};
InputCount input_count(const EntryType& type, const Attrs& attrs);
/// "add takes 2 inputs, not 1"; "" if the number is right.
std::string input_fault(const EntryType& type, const Attrs& attrs, int given);

}  // namespace trainctl
