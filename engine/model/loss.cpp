// Builds any loss: the label's shape, the scale, the node.
#include "engine/model/loss.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/model/model.h"
#include "engine/ops/expect.h"
#include "engine/ops/layer_builder.h"
#include "engine/ops/loss_def.h"
#include "engine/ops/metric_def.h"
#include "engine/spec/batch_transforms.h"
#include "engine/spec/fields.h"

namespace trainctl {
namespace {

const LossDef& loss_def(const std::string& name) {
  const LossDef* def = find_loss(name);
  if (def == nullptr) shape_error(fmt::format("there is no loss '{}'; known: {}", name, join(names_of(loss_types()))));
  return *def;
}

/// The label in the shape that the loss needs; it must have that number of elements per sample.
TensorId label_for(const LossContext& c, const LossDef& type, const Shape& prediction, bool soft) {
  const DataField* field = c.data.find("label");
  if (field == nullptr) shape_error("the loss needs a sample field 'label'; call one of dataset.fields 'label'");
  const bool classes = type.labels_are_classes && !soft;
  if (classes != field->is_integer) {
    shape_error(fmt::format("{} needs {} labels, but the data set has {}; set dataset.label_dtype: {}",
                            c.spec.loss->type, classes ? "i32" : "f32", field->is_integer ? "i32" : "f32",
                            classes ? "i32" : "f32"));
  }
  const Shape wanted(prediction.begin(), prediction.end() - (classes ? 1 : 0));
  Shape own = field->shape;
  own.insert(own.begin(), c.batch);
  if (const auto label = c.graph.find_tensor("label")) {
    const Shape& shape = c.graph.tensors[*label].shape;
    if (shape == wanted) return *label;
    shape_error(fmt::format("the prediction is {}, so the label must be {}, but a layer reads it as {}",
                            to_string(prediction), to_string(wanted), to_string(shape)));
  }
  if (num_elements(own) != num_elements(wanted)) {
    const bool keeps_dims = num_elements(field->shape) == 1 && prediction.size() > 2;
    shape_error(
        fmt::format("the prediction is {}, so the label must be {}, but the data set's is {}{}", to_string(prediction),
                    to_string(wanted), to_string(own),
                    keeps_dims ? "; a dense layer keeps all dims but the last: add {type: flatten} before it" : ""));
  }
  Tensor tensor{.name = "label", .shape = wanted};
  tensor.dtype = field->is_integer ? DType::i32 : DType::f32;
  tensor.kind = TensorKind::input;
  tensor.batch = {.dim = 0, .rows = c.batch, .sized = 1};
  c.graph.tensors.push_back(tensor);
  return static_cast<TensorId>(c.graph.tensors.size() - 1);
}

/// The sample fields that the loss reads after the label.
void add_fields(const LossContext& c, const LossDef& type, std::vector<TensorId>& inputs) {
  for (const LossField& wanted : type.reads) {
    const auto field = std::find_if(c.data.fields.begin(), c.data.fields.end(),
                                    [&](const DataField& f) { return f.name == wanted.name; });
    if (field == c.data.fields.end() && wanted.is_optional) return;
    if (field == c.data.fields.end())
      shape_error(fmt::format("{} needs a sample field '{}'; name it in dataset.fields", type.name, wanted.name));
    if (field->is_integer != wanted.is_integer)
      shape_error(fmt::format("{} needs {} of {}, but the data set has {}", type.name, wanted.name,
                              wanted.is_integer ? "integers" : "floats", field->is_integer ? "integers" : "floats"));
    if (c.graph.find_tensor(wanted.name))
      shape_error(fmt::format("a layer reads {}, which is for the loss alone", wanted.name));
    Tensor tensor{.name = wanted.name, .shape = field->shape};
    tensor.shape.insert(tensor.shape.begin(), c.batch);
    tensor.dtype = wanted.is_integer ? DType::i32 : DType::f32;
    tensor.kind = TensorKind::input;
    tensor.batch = {.dim = 0, .rows = c.batch, .sized = 1};
    c.graph.tensors.push_back(tensor);
    inputs.push_back(static_cast<TensorId>(c.graph.tensors.size() - 1));
  }
}

/// Whole numbers of rows until the step's end, so that every plan adds up to the same number.
void add_metrics(const LossContext& c, LayerBuilder& builder, TensorId prediction, TensorId label, int64_t rows) {
  static_assert(kMaxMetrics == kMostMetrics, "the job file and a step must have the same limit on metrics");
  for (const MetricSpec& spec : c.spec.metrics) {
    const MetricDef* def = find_metric(spec.type);
    check(def != nullptr, "the parser must accept only known metrics");
    const std::string name = def->reported_as(spec.attrs);
    Attrs attrs = spec.attrs;
    if (const Value* ignored = c.spec.loss->attrs.find("ignore_index")) attrs.set("ignore_index", *ignored);
    try {
      const TensorId sum = builder.emit(def->op->name, {prediction, label}, attrs, name)[0];
      c.graph.metrics.push_back({name, sum, 1.0 / (static_cast<double>(rows) * c.shares)});
    } catch (const ShapeError& problem) {
      const std::string path = spec.path + (problem.field.empty() ? "" : "." + problem.field);
      throw SpecError(c.spec.position(path), path, problem.what());
    }
  }
}

/// Class probabilities times loss.class_weights, which the soft op of the loss reads. Moves the attrs that they depend
/// on out of `attrs`.
TensorId weighted_targets(LayerBuilder& builder, const std::vector<TensorId>& inputs, bool soft, Attrs& attrs) {
  if (soft) shape_error("class_weights needs class labels, but the data set has class probabilities");
  if (attrs.has("ignore_index"))
    shape_error(
        "class_weights and ignore_index exclude each other: give the class that is to be ignored a weight of 0");
  Attrs of_targets;
  for (const char* name : {"class_weights", "label_smoothing"}) {
    if (const Value* value = attrs.find(name)) of_targets.set(name, *value);
    attrs.erase(name);
  }
  return builder.emit("class_targets", inputs, of_targets, "targets")[0];
}

/// In layers before the loss, so that the nodes of the loss itself read (prediction, label).
TensorId margins_of(const LossContext& c, const LossDef& type, TensorId prediction) {
  const Shape& shape = c.graph.tensors[prediction].shape;
  const Shape& targets = c.graph.tensors[c.targets].shape;
  if (shape.size() != 3 || shape[1] != targets[1])
    shape_error(fmt::format("{} needs a prediction [{}, {}, classes], but got {}", type.name, targets[0], targets[1],
                            to_string(shape)));
  const auto first = static_cast<LayerId>(c.graph.layers.size());
  for (const char* name : {"loss.gains", "loss.margins"})
    c.graph.layers.push_back({.name = name, .type = type.name, .pos = c.spec.position("loss")});
  LayerBuilder gains(c.graph, first), sums(c.graph, first + 1);
  return type.margins(gains, sums, {prediction, c.reference, c.targets},
                      with_defaults(c.spec.loss->attrs, type.fields));
}

}  // namespace

bool needs_reference(const std::string& loss) {
  const LossDef* def = find_loss(loss);
  return def != nullptr && def->margins != nullptr;
}

TensorId build_loss(LossContext c, TensorId prediction) {
  const LossDef& type = loss_def(c.spec.loss->type);
  if (type.margins != nullptr) prediction = margins_of(c, type, prediction);
  const bool soft = type.labels_are_classes && has_soft_labels(c.spec.dataset);
  if (soft && type.soft_op == nullptr)
    shape_error(fmt::format("{} needs class labels, but one_hot turns them into class probabilities", type.name));
  const Shape shape = c.graph.tensors[prediction].shape;
  if (type.labels_are_classes && shape.size() < 2) {
    shape_error(fmt::format("{} needs a prediction [.., classes], but got {}", type.name, to_string(shape)));
  }
  const TensorId label = label_for(c, type, shape, soft);
  const int64_t terms = num_elements(c.graph.tensors[label].shape) / (soft ? std::max<int64_t>(shape.back(), 1) : 1);
  c.graph.layers.push_back({.name = "loss", .type = c.spec.loss->type, .pos = c.spec.position("loss")});
  LayerBuilder builder(c.graph, static_cast<LayerId>(c.graph.layers.size() - 1));
  // First: what reads the prediction after the loss would keep its gradient from taking its memory.
  add_metrics(c, builder, prediction, label, terms);
  Attrs attrs = type.margins != nullptr ? Attrs() : with_defaults(c.spec.loss->attrs, type.fields);
  const double mean = 1.0 / (static_cast<double>(terms) * c.shares);
  const bool sums = c.spec.loss->reduction == "sum";
  attrs.set("scale", sums ? 1.0 : mean);
  if (sums) attrs.set("mean_scale", mean);  // for evaluations
  const bool weighted = attrs.has("class_weights");
  const TensorId targets = weighted ? weighted_targets(builder, {prediction, label}, soft, attrs) : label;
  std::vector<TensorId> inputs = {prediction, targets};
  add_fields(c, type, inputs);
  const TensorId loss = builder.emit((soft || weighted ? type.soft_op : type.op)->name, inputs, attrs)[0];
  // It sums over all rows, and the sums of micro-batches add up. That is the sum over the batch if a row of the
  // prediction is of the sample of its label.
  const BatchRows& rows = c.graph.tensors[prediction].batch;
  c.graph.layers.back().mixed_rows = rows.dim == 0 && rows.outer == 1 ? 0 : c.batch;
  builder.finish({loss});
  return loss;
}

}  // namespace trainctl
