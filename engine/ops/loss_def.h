// Everything that the job file, its reference, the model and the compiler know about one loss. A loss is in the
// folder of its op (pair_loss/pair_loss.cpp defines mse_loss) and is listed in its OpFamily.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "engine/base/entry_types.h"
#include "engine/graph/graph.h"
#include "engine/ops/op_def.h"

namespace trainctl {

class LayerBuilder;  // layer_builder.h

/// The layers before the loss in which LossDef::compose computes.
class LossLayers {
 public:
  virtual ~LossLayers() = default;
  /// Adds the layer "loss.<name>". The caller finishes it.
  virtual LayerBuilder& add(const char* name) = 0;
};

/// The inputs of a loss that compares two networks.
struct LossRows {
  TensorId prediction = -1, reference = -1;  ///< outputs with and without adapters
  TensorId targets = -1;                     ///< the sample field of that name
};

/// The inputs of a loss that layers before it compute.
struct LossInputs {
  std::vector<TensorId> outputs;
  TensorId label = -1;           ///< with LabelUse::composed or sequence
  std::vector<TensorId> fields;  ///< the fields of LossDef::reads, in this order; -1 for a field that the samples lack
  bool sums = false;             ///< loss.reduction is sum
};

/// The reader of the label.
enum class LabelUse : uint8_t {
  op,  ///< the op reads (prediction, label)
  /// LossDef::compose: as many elements as the first output; with labels_are_classes one class per row of it, or shares
  /// of its classes.
  composed,
  sequence,  ///< LossDef::compose: i32 [n, ..] of any length
  none
};

/// A sample field that a loss reads in addition to the label: [.., n] with the rows of the label.
struct LossField {
  const char* name;
  bool is_integer = false;  ///< i32; else f32
  bool is_optional = false;
};

/// The op reads (prediction, label) and computes [1]: attr scale times a sum. Its gradient reads the same inputs. An op
/// that reads no label reads the prediction twice.
struct LossDef {
  const char* name;                 ///< the `type` of a job file
  const char* doc;                  ///< the quantity that is minimised, without a full stop: "mean |p - l|"
  std::vector<Field> fields = {};   ///< become attrs of the op
  const OpDef* op;                  ///< its kernel names the gradient's, and the one that computes both
  bool labels_are_classes = false;  ///< i32, one per row of the prediction; else f32, one per element
  /// For class labels: the op for labels that are class probabilities, f32 and one per element (one_hot, mixup and
  /// cutmix of the data set). Null: there is none.
  const OpDef* soft_op = nullptr;
  /// For a loss that compares two networks: computes what the op reads as its prediction, in two layers before the
  /// loss, and finishes both. The op then has no attrs of the job. Null: the op reads the prediction.
  TensorId (*margins)(LayerBuilder& gains, LayerBuilder& sums, const LossRows& rows, const Attrs& attrs) = nullptr;
  /// Number of outputs of layers that it reads (LossSpec::inputs).
  int num_outputs = 1;
  LabelUse label_use = LabelUse::op;
  /// Computes what the op reads as its prediction. The op has the attrs of the job, too. Null: it reads the output.
  TensorId (*compose)(LossLayers& layers, const LossInputs& inputs, const Attrs& attrs) = nullptr;
  /// Sample fields that the op reads after the label, or that `compose` reads, in this order.
  std::vector<LossField> reads = {};
};

/// Every loss, in the order of the reference.
std::span<const LossDef* const> all_losses();
/// Null if there is none of that name.
const LossDef* find_loss(std::string_view name);

}  // namespace trainctl
