// mae, mse and softmax_cross_entropy: the label's shape, the scale, the node.
#include "engine/model/loss.h"

#include <fmt/format.h>

#include <map>

#include "engine/model/model.h"
#include "engine/ops/expect.h"

namespace trainctl {
namespace {

struct LossType {
  const char* op;
  bool labels_are_classes;  ///< i32, one a row of the prediction; else f32, one an element
};

const LossType& loss_type(const std::string& name) {
  static const std::map<std::string, LossType> types = {
      {"mae", {"mae", false}},
      {"mse", {"mse", false}},
      {"softmax_cross_entropy", {"softmax_cross_entropy", true}},
  };
  const auto it = types.find(name);
  if (it == types.end())
    shape_error(fmt::format("there is no loss '{}'; known: mae, mse, softmax_cross_entropy", name));
  return it->second;
}

/// The label in the shape that the loss needs: its numbers a sample must be as many.
TensorId label_for(const LossContext& c, const LossType& type, const Shape& prediction) {
  if (type.labels_are_classes != c.data.label_is_integer) {
    shape_error(fmt::format("{} needs {} labels, the data set gives {}; set dataset.label_dtype: {}", c.spec.loss->type,
                            type.labels_are_classes ? "i32" : "f32", c.data.label_is_integer ? "i32" : "f32",
                            type.labels_are_classes ? "i32" : "f32"));
  }
  const Shape wanted(prediction.begin(), prediction.end() - (type.labels_are_classes ? 1 : 0));
  Shape own = c.data.label;
  own.insert(own.begin(), c.batch);
  if (const auto label = c.graph.find_tensor("label")) {
    const Shape& shape = c.graph.tensors[*label].shape;
    if (shape == wanted) return *label;
    shape_error(fmt::format("the prediction is {}, so the label must be {}; a layer reads it as {}",
                            to_string(prediction), to_string(wanted), to_string(shape)));
  }
  if (num_elements(own) != num_elements(wanted)) {
    shape_error(fmt::format("the prediction is {}, so the label must be {}, but the data set's is {}",
                            to_string(prediction), to_string(wanted), to_string(own)));
  }
  Tensor tensor{.name = "label", .shape = wanted};
  tensor.dtype = c.data.label_is_integer ? DType::i32 : DType::f32;
  tensor.kind = TensorKind::input;
  c.graph.tensors.push_back(tensor);
  return static_cast<TensorId>(c.graph.tensors.size() - 1);
}

}  // namespace

TensorId build_loss(LossContext c, TensorId prediction) {
  const LossType& type = loss_type(c.spec.loss->type);
  const Shape shape = c.graph.tensors[prediction].shape;
  if (type.labels_are_classes && shape.size() < 2) {
    shape_error(fmt::format("{} needs a prediction [.., classes], it is given {}", type.op, to_string(shape)));
  }
  const TensorId label = label_for(c, type, shape);
  const int64_t terms = num_elements(c.graph.tensors[label].shape);
  c.graph.layers.push_back({.name = "loss", .type = c.spec.loss->type, .pos = c.spec.position("loss")});
  LayerBuilder builder(c.graph, static_cast<LayerId>(c.graph.layers.size() - 1));
  const Attrs attrs{{"scale", 1.0 / (static_cast<double>(terms) * c.shares)}};
  const TensorId loss = builder.emit(type.op, {prediction, label}, attrs)[0];
  builder.finish(loss);
  return loss;
}

}  // namespace trainctl
