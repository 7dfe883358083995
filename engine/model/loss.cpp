// Builds any loss: the label's shape, the scale, the node.
#include "engine/model/loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <set>

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

/// The field `name`, not the one that stands for "data".
const DataField* field_called(const DataShapes& data, const std::string& name) {
  for (const DataField& field : data.fields)
    if (field.name == name) return &field;
  return nullptr;
}

/// True if the labels are shares of all classes: one_hot makes them so, or the data set has them.
bool has_class_shares(const LossContext& c, const LossSpec& loss, const LossDef& type, const Shape& prediction) {
  if (!type.labels_are_classes) return false;
  if (loss.label == "label" && has_soft_labels(c.spec.dataset)) return true;
  const DataField* field = field_called(c.data, loss.label);
  const bool takes_shares = type.soft_op != nullptr || type.label_use == LabelUse::composed;
  return takes_shares && field != nullptr && !field->is_integer && prediction.size() > 1 &&
         num_elements(field->shape) * prediction[0] == num_elements(prediction);
}

TensorId add_input(const LossContext& c, const std::string& name, Shape shape, bool is_integer) {
  Tensor tensor{.name = name, .shape = std::move(shape)};
  tensor.dtype = is_integer ? DType::i32 : DType::f32;
  tensor.kind = TensorKind::input;
  tensor.batch = {.dim = 0, .rows = c.batch, .sized = 1};
  c.graph.tensors.push_back(tensor);
  return static_cast<TensorId>(c.graph.tensors.size() - 1);
}

/// The label in the shape that the loss needs; it must have that number of elements per sample.
TensorId label_for(const LossContext& c, const LossSpec& loss, const LossDef& type, const Shape& prediction,
                   bool soft) {
  const DataField* field = field_called(c.data, loss.label);
  if (field == nullptr)
    shape_error(fmt::format("the loss needs a sample field '{0}'; call one of dataset.fields '{0}'", loss.label));
  const bool classes = type.labels_are_classes && !soft;
  if (classes != field->is_integer) {
    if (loss.label != "label")
      shape_error(fmt::format("{} needs {} labels, but the sample field '{}' has {}", loss.type,
                              classes ? "i32" : "f32", loss.label, field->is_integer ? "i32" : "f32"));
    shape_error(fmt::format("{} needs {} labels, but the data set has {}; set dataset.label_dtype: {}", loss.type,
                            classes ? "i32" : "f32", field->is_integer ? "i32" : "f32", classes ? "i32" : "f32"));
  }
  const Shape wanted(prediction.begin(), prediction.end() - (classes ? 1 : 0));
  Shape own = field->shape;
  own.insert(own.begin(), c.batch);
  if (const auto label = c.graph.find_tensor(loss.label)) {
    const Shape& shape = c.graph.tensors[*label].shape;
    if (shape == wanted) return *label;
    shape_error(fmt::format("the prediction is {}, so the label must be {}, but a layer or another loss reads it as {}",
                            to_string(prediction), to_string(wanted), to_string(shape)));
  }
  if (num_elements(own) != num_elements(wanted)) {
    const bool keeps_dims = num_elements(field->shape) == 1 && prediction.size() > 2;
    shape_error(
        fmt::format("the prediction is {}, so the label must be {}, but the data set's is {}{}", to_string(prediction),
                    to_string(wanted), to_string(own),
                    keeps_dims ? "; a dense layer keeps all dims but the last: add {type: flatten} before it" : ""));
  }
  return add_input(c, loss.label, wanted, field->is_integer);
}

/// A label of any length, with the dims of the sample field.
TensorId label_sequence(const LossContext& c, const LossSpec& loss) {
  const DataField* field = field_called(c.data, loss.label);
  if (field == nullptr || !field->is_integer || field->shape.size() != 1)
    shape_error(fmt::format("{} needs a sample field '{}' of i32 with one dim, the sequence of classes", loss.type,
                            loss.label));
  if (const auto label = c.graph.find_tensor(loss.label)) return *label;
  return add_input(c, loss.label, {c.batch, field->shape[0]}, true);
}

/// The sample fields that the loss reads after the label; -1 for optional ones that the samples lack.
std::vector<TensorId> add_fields(const LossContext& c, const LossDef& type) {
  std::vector<TensorId> inputs;
  for (const LossField& wanted : type.reads) {
    const auto field = std::find_if(c.data.fields.begin(), c.data.fields.end(),
                                    [&](const DataField& f) { return f.name == wanted.name; });
    if (field == c.data.fields.end() && wanted.is_optional) {
      inputs.push_back(-1);
      continue;
    }
    if (field == c.data.fields.end())
      shape_error(fmt::format("{} needs a sample field '{}'; name it in dataset.fields", type.name, wanted.name));
    if (field->is_integer != wanted.is_integer)
      shape_error(fmt::format("{} needs {} of {}, but the data set has {}", type.name, wanted.name,
                              wanted.is_integer ? "integers" : "floats", field->is_integer ? "integers" : "floats"));
    if (c.graph.find_tensor(wanted.name))
      shape_error(fmt::format("a layer reads {}, which only the loss may read", wanted.name));
    Shape shape = field->shape;
    shape.insert(shape.begin(), c.batch);
    inputs.push_back(add_input(c, wanted.name, std::move(shape), wanted.is_integer));
  }
  return inputs;
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
TensorId weighted_targets(LayerBuilder& builder, const std::vector<TensorId>& inputs, bool soft,
                          const std::string& loss, Attrs& attrs) {
  if (soft) shape_error("class_weights needs class labels, but the data set has class probabilities");
  if (attrs.has("ignore_index"))
    shape_error(
        "class_weights and ignore_index cannot be combined: give the class that is to be ignored a weight of 0");
  Attrs of_targets;
  for (const char* name : {"class_weights", "label_smoothing"}) {
    if (const Value* value = attrs.find(name)) of_targets.set(name, *value);
    attrs.erase(name);
  }
  return builder.emit("class_targets", inputs, of_targets, loss.empty() ? "targets" : loss + ".targets")[0];
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

/// The layers of one loss before the graph's last one.
class LayersBefore : public LossLayers {
 public:
  LayersBefore(const LossContext& c, const LossSpec& loss) : c_(c), loss_(loss) {}

  LayerBuilder& add(const char* name) override {
    const std::string prefix = loss_.name.empty() ? "loss." : "loss." + loss_.name + ".";
    c_.graph.layers.push_back({.name = prefix + name, .type = loss_.type, .pos = c_.spec.position(loss_.path)});
    return builders_.emplace_back(c_.graph, static_cast<LayerId>(c_.graph.layers.size() - 1));
  }

 private:
  const LossContext& c_;
  const LossSpec& loss_;
  std::deque<LayerBuilder> builders_;
};

/// A loss whose op is not emitted yet.
struct OpenLoss {
  const LossSpec& spec;
  const LossDef& type;
  TensorId prediction, label;
  int64_t terms;
  bool soft;
  /// The tensors that metrics compare. If layers compute the loss, the inputs of those layers.
  TensorId scored, scored_label;
  bool is_composed() const { return scored != prediction; }
};

/// A loss up to its op: the layers that it adds before the op, its label, and the number of terms of its mean.
OpenLoss open_loss(const LossContext& c, const LossSpec& spec, const std::vector<TensorId>& outputs) {
  const LossDef& type = loss_def(spec.type);
  TensorId prediction = outputs.at(0), scored_label = -1;
  if (type.margins != nullptr) prediction = margins_of(c, type, prediction);
  if (type.compose != nullptr) {
    LossInputs inputs{outputs};
    inputs.sums = spec.reduction == "sum";
    const Shape output = c.graph.tensors[prediction].shape;
    if (type.labels_are_classes && output.size() < 2)
      shape_error(fmt::format("{} needs a prediction [.., classes], but got {}", type.name, to_string(output)));
    if (type.label_use == LabelUse::composed)
      inputs.label = label_for(c, spec, type, output, has_class_shares(c, spec, type, output));
    if (type.label_use == LabelUse::sequence) inputs.label = label_sequence(c, spec);
    scored_label = inputs.label;
    inputs.fields = add_fields(c, type);
    LayersBefore layers(c, spec);
    prediction = type.compose(layers, inputs, with_defaults(spec.attrs, type.fields));
  }
  const Shape shape = c.graph.tensors[prediction].shape;
  const bool soft = type.compose == nullptr && has_class_shares(c, spec, type, shape);
  if (soft && type.soft_op == nullptr)
    shape_error(fmt::format("{} needs class labels, but one_hot turns them into class probabilities", type.name));
  if (type.compose == nullptr && type.labels_are_classes && shape.size() < 2) {
    shape_error(fmt::format("{} needs a prediction [.., classes], but got {}", type.name, to_string(shape)));
  }
  const TensorId label = type.label_use == LabelUse::op ? label_for(c, spec, type, shape, soft) : prediction;
  const int64_t terms = num_elements(c.graph.tensors[label].shape) / (soft ? std::max<int64_t>(shape.back(), 1) : 1);
  const bool reads_label = scored_label < 0;
  return {spec,
          type,
          prediction,
          label,
          terms,
          soft,
          reads_label ? prediction : outputs[0],
          reads_label ? label : scored_label};
}

/// The fields of a loss of several ops are attrs of those ops: its last one has only those that its kernel accepts.
Attrs attrs_of_op(const OpenLoss& loss) {
  const LossDef& type = loss.type;
  if (type.margins != nullptr) return {};
  const Attrs fields = with_defaults(loss.spec.attrs, type.fields);
  if (type.compose == nullptr) return fields;
  const KernelExample accepted = type.op->kernel.example();
  Attrs attrs;
  for (const auto& [name, value] : fields)
    if (accepted.attrs.has(name) || accepted.optional.has(name)) attrs.set(name, value);
  return attrs;
}

/// In the last layer; returns [1].
TensorId emit_loss(const LossContext& c, LayerBuilder& builder, const OpenLoss& loss, const std::string& suffix) {
  const LossDef& type = loss.type;
  Attrs attrs = attrs_of_op(loss);
  const double mean = loss.spec.weight / (static_cast<double>(loss.terms) * c.shares);
  const bool sums = loss.spec.reduction == "sum";
  attrs.set("scale", sums ? loss.spec.weight / c.copies : mean);
  if (sums) attrs.set("mean_scale", mean);  // for evaluations
  const bool weighted = attrs.has("class_weights");
  const TensorId targets =
      weighted ? weighted_targets(builder, {loss.prediction, loss.label}, loss.soft, suffix, attrs) : loss.label;
  std::vector<TensorId> inputs = {loss.prediction, targets};
  if (type.compose == nullptr)
    for (const TensorId field : add_fields(c, type))
      if (field >= 0) inputs.push_back(field);
  return builder.emit((loss.soft || weighted ? type.soft_op : type.op)->name, inputs, attrs, suffix)[0];
}

/// The rows of all losses are one factor, and nothing else of them is cut, so that every rank has the same share of
/// each: one collective adds up the loss and all metrics, over the ranks that have a part of the loss.
class SharedRows {
 public:
  SharedRows(Graph& graph, LayerBuilder& builder) : graph_(graph), builder_(builder) {}

  /// Before the nodes that read these.
  void begin(TensorId prediction, TensorId label) {
    const Tensor& tensor = graph_.tensors[prediction];
    if (first_ < 0) {
      first_ = prediction;
      shared_ = tensor.batch.dim == 0;
    } else {
      const Tensor& first = graph_.tensors[first_];
      shared_ = shared_ && tensor.batch.dim == 0 && tensor.shape[0] == first.shape[0];
      if (shared_ && !read_.contains(prediction)) builder_.share_factors(prediction, 0, first_, 0);
    }
    read_.insert({prediction, label});
  }

  void finish(Layer& layer) const {
    const DimRule rows = shared_ ? builder_.rule_of(first_)[0] : DimRule{};
    for (size_t f = 0; f < layer.factors.size(); ++f) {
      if (std::find(rows.begin(), rows.end(), static_cast<int>(f)) != rows.end()) continue;
      layer.factors[f].cuttable = false;
      layer.factors[f].why_not =
          "a loss with auxiliary losses, or one with metrics of a prediction that it does not read itself, can be cut "
          "only by rows of the batch";
    }
  }

 private:
  Graph& graph_;
  LayerBuilder& builder_;
  std::set<TensorId> read_;
  TensorId first_ = -1;
  bool shared_ = true;
};

/// Each is a number of the step of its own, without its weight.
void add_auxiliary(const LossContext& c, LayerBuilder& builder, const std::vector<OpenLoss>& losses, SharedRows& rows) {
  for (const OpenLoss& loss : losses) {
    rows.begin(loss.prediction, loss.label);
    const TensorId sum = emit_loss(c, builder, loss, loss.spec.name);
    c.graph.metrics.push_back({"loss." + loss.spec.name, sum, 1.0 / loss.spec.weight, true});
  }
}

}  // namespace

bool needs_reference(const std::string& loss) {
  const LossDef* def = find_loss(loss);
  return def != nullptr && def->margins != nullptr;
}

TensorId build_loss(LossContext c, const std::vector<LossOutputs>& losses) {
  std::vector<OpenLoss> auxiliary;
  std::optional<OpenLoss> main;
  for (const LossOutputs& one : losses) {
    try {
      const OpenLoss loss = open_loss(c, *one.spec, one.outputs);
      if (one.spec->path == "loss")
        main.emplace(loss);
      else
        auxiliary.push_back(loss);
    } catch (const ShapeError& problem) {
      const std::string path = one.spec->path + (problem.field.empty() ? "" : "." + problem.field);
      throw SpecError(c.spec.position(path), path, problem.what());
    }
  }
  check(main.has_value(), "auxiliary losses are added to a loss");
  c.graph.layers.push_back({.name = "loss", .type = main->spec.type, .pos = c.spec.position("loss")});
  LayerBuilder builder(c.graph, static_cast<LayerId>(c.graph.layers.size() - 1));
  // First: what reads the prediction after the loss would keep its gradient from taking its memory.
  SharedRows rows(c.graph, builder);
  const bool has_metrics = !c.spec.metrics.empty();
  if (has_metrics) {
    rows.begin(main->scored, main->scored_label);
    const int64_t labels = num_elements(c.graph.tensors[main->scored_label].shape);
    add_metrics(c, builder, main->scored, main->scored_label, main->is_composed() ? labels : main->terms);
  }
  add_auxiliary(c, builder, auxiliary, rows);
  rows.begin(main->prediction, main->label);
  const TensorId loss = emit_loss(c, builder, *main, "");
  if (!auxiliary.empty() || (has_metrics && main->is_composed())) rows.finish(c.graph.layers.back());
  // It sums over all rows, and the sums of micro-batches add up. That is the sum over the batch if row i of the
  // prediction and label i belong to the same sample.
  const auto is_by_row = [&](const OpenLoss& one) {
    const BatchRows& batch = c.graph.tensors[one.prediction].batch;
    return one.type.label_use != LabelUse::none && batch.dim == 0 && batch.outer == 1;
  };
  const bool by_row = is_by_row(*main) && std::all_of(auxiliary.begin(), auxiliary.end(), is_by_row);
  c.graph.layers.back().mixed_rows = by_row ? 0 : c.batch;
  builder.finish({loss});
  return loss;
}

}  // namespace trainctl
