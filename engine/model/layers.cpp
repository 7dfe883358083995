// The layer types of a job and the nodes that they become.
#include "engine/model/layers.h"

#include <fmt/format.h>

#include <cmath>
#include <map>

#include "engine/base/text.h"
#include "engine/model/collective_layers.h"
#include "engine/ops/expect.h"

namespace trainctl {
namespace {

/// As PyTorch's Linear: uniform(-1/sqrt(k), 1/sqrt(k)), unless the job gives a deviation.
Init linear_init(const Attrs& attrs, int64_t features) {
  if (attrs.has("init_std")) return {Init::Kind::normal, attrs.number("init_std")};
  return {Init::Kind::uniform, 1.0 / std::sqrt(static_cast<double>(features))};
}

Init constant_init(double value) { return {Init::Kind::constant, value}; }

int64_t non_negative_dim(const LayerContext& layer, int64_t dim) {
  const auto ndim = static_cast<int64_t>(layer.shape().size());
  if (dim >= -ndim && dim < ndim) return dim < 0 ? dim + ndim : dim;
  shape_error(fmt::format("there is no dim {} in its input {}; dims are {} to {}", dim, to_string(layer.shape()), -ndim,
                          ndim - 1));
}

Ints non_negative_dims(const LayerContext& layer, Ints dims) {
  for (int64_t& dim : dims) dim = non_negative_dim(layer, dim);
  return dims;
}

/// The layer's own weight, or with `share` the weight of an earlier layer.
TensorId weight(LayerContext& layer, const Shape& shape, Init init) {
  const std::string owner = layer.attrs().text("share");
  if (owner.empty()) return layer.builder.parameter("weight", shape, init);
  const auto shared = layer.graph.find_tensor(owner + ".weight");
  if (!shared || layer.graph.tensors[*shared].kind != TensorKind::parameter) {
    shape_error(fmt::format("share: '{}' must be a layer with an own weight that stands before this one", owner));
  }
  const Shape& found = layer.builder.shape(*shared);
  if (found != shape) {
    shape_error(
        fmt::format("share: the weight of '{}' is {}, this layer needs {}", owner, to_string(found), to_string(shape)));
  }
  return *shared;
}

TensorId emit_one(LayerContext& layer, std::string_view op, Attrs attrs = {}) {
  return layer.builder.emit(op, layer.inputs, std::move(attrs))[0];
}

TensorId flatten(LayerContext& layer) {
  const Shape& in = layer.shape();
  return emit_one(layer, "reshape", {{"shape", Shape{in[0], num_elements(in) / in[0]}}});
}

TensorId reshape(LayerContext& layer) {
  const Shape& in = layer.shape();
  Shape out = layer.attrs().ints("shape");
  int64_t known = 1, unknown = 0;
  const int64_t sample = num_elements(in) / in[0];
  for (int64_t size : out) {
    if (size == -1) ++unknown;
    if (size != -1) known = size > 0 && known <= sample / size ? known * size : sample + 1;
  }
  const bool fits = unknown == 0 ? known == sample : unknown == 1 && known > 0 && sample % known == 0;
  if (!fits) {
    shape_error(fmt::format("a sample of {} has {} elements, they do not fit shape {}",
                            to_string(Shape(in.begin() + 1, in.end())), sample, to_string(out)));
  }
  for (int64_t& size : out) {
    if (size == -1) size = sample / known;
  }
  out.insert(out.begin(), in[0]);
  return emit_one(layer, "reshape", {{"shape", out}});
}

TensorId transpose(LayerContext& layer) { return emit_one(layer, "transpose", {{"perm", layer.attrs().ints("perm")}}); }

TensorId dense(LayerContext& layer) {
  LayerBuilder& b = layer.builder;
  const int64_t features = layer.shape().back(), units = layer.attrs().integer("units");
  const bool bias = layer.attrs().flag("bias", true);
  const TensorId w = weight(layer, {units, features}, linear_init(layer.attrs(), features));
  const TensorId product = b.emit("matmul", {layer.inputs[0], w}, {{"transpose_b", true}}, bias ? "matmul" : "")[0];
  if (!bias) return product;
  const TensorId shift = b.parameter("bias", {units}, linear_init({}, features));
  return b.emit("add_bias", {product, shift})[0];
}

TensorId matmul(LayerContext& layer) {
  const Attrs& a = layer.attrs();
  const bool transpose_a = a.flag("transpose_a"), transpose_b = a.flag("transpose_b");
  const Attrs attrs{{"transpose_a", transpose_a}, {"transpose_b", transpose_b}};
  if ((layer.inputs.size() == 2) == a.has("units")) {
    shape_error("a matmul has either two inputs, or one input and units (the columns of its own weight)");
  }
  if (layer.inputs.size() == 2) {
    if (layer.inputs[0] == layer.inputs[1]) {
      shape_error("a matmul of a tensor with itself is not supported; put a reshape layer before one of the inputs");
    }
    return emit_one(layer, "matmul", attrs);
  }
  const Shape& in = layer.shape();
  if (in.size() < 2)
    shape_error(fmt::format("matmul needs an input of at least 2 dims, it is given {}", to_string(in)));
  const int64_t k = transpose_a ? in[in.size() - 2] : in.back(), n = a.integer("units");
  const TensorId w = weight(layer, transpose_b ? Shape{n, k} : Shape{k, n}, linear_init(a, k));
  return layer.builder.emit("matmul", {layer.inputs[0], w}, attrs)[0];
}

TensorId add(LayerContext& layer) { return emit_one(layer, "add"); }
TensorId mul(LayerContext& layer) { return emit_one(layer, "mul"); }
TensorId relu(LayerContext& layer) { return emit_one(layer, "relu"); }
TensorId sigmoid(LayerContext& layer) { return emit_one(layer, "sigmoid"); }
TensorId tanh_layer(LayerContext& layer) { return emit_one(layer, "tanh"); }

TensorId gelu(LayerContext& layer) {
  return emit_one(layer, "gelu", {{"approximate", layer.attrs().text("approximate", "none")}});
}

TensorId softmax(LayerContext& layer) {
  return emit_one(layer, "softmax", {{"dim", non_negative_dim(layer, layer.attrs().integer("dim", -1))}});
}

TensorId dropout(LayerContext& layer) {
  const auto key = static_cast<int64_t>(stable_hash(layer.spec.name));
  return emit_one(layer, "dropout", {{"p", layer.attrs().number("p", 0.5)}, {"key", key}});
}

TensorId batch_norm(LayerContext& layer) {
  LayerBuilder& b = layer.builder;
  const Shape in = layer.shape();
  if (in.size() < 2) shape_error(fmt::format("batch_norm needs features in dim 1, its input is {}", to_string(in)));
  const int64_t features = in[1], count = num_elements(in) / features;
  const double eps = layer.attrs().number("eps", 1e-5);
  const TensorId x = layer.inputs[0];
  const TensorId mean = b.emit("batch_norm_mean", {x}, {{"count", count}}, "mean")[0];
  const TensorId var = b.emit("batch_norm_var", {x, mean}, {{"count", count}}, "var")[0];
  const TensorId running_mean = b.state("running_mean", {features}, 0),
                 running_var = b.state("running_var", {features}, 1);
  b.emit("batch_norm_running", {mean, var, running_mean, running_var},
         {{"momentum", layer.attrs().number("momentum", 0.1)}, {"count", count}}, "running");
  std::vector<TensorId> inputs = {x, mean, var};
  if (layer.attrs().flag("affine", true)) {
    inputs.push_back(b.parameter("weight", {features}, constant_init(1)));
    inputs.push_back(b.parameter("bias", {features}, constant_init(0)));
  }
  return b.emit("batch_norm", inputs, {{"count", count}, {"eps", eps}})[0];
}

TensorId layer_norm(LayerContext& layer) {
  std::vector<TensorId> inputs = {layer.inputs[0]};
  if (layer.attrs().flag("affine", true)) {
    inputs.push_back(layer.builder.parameter("weight", {layer.shape().back()}, constant_init(1)));
    inputs.push_back(layer.builder.parameter("bias", {layer.shape().back()}, constant_init(0)));
  }
  return layer.builder.emit("layer_norm", inputs, {{"eps", layer.attrs().number("eps", 1e-5)}})[0];
}

TensorId embedding(LayerContext& layer) {
  const double deviation = layer.attrs().number("init_std", 1.0);
  const Shape shape{layer.attrs().integer("vocab"), layer.attrs().integer("units")};
  const TensorId table = weight(layer, shape, {Init::Kind::normal, deviation});
  return layer.builder.emit("embedding", {layer.inputs[0], table})[0];
}

TensorId reduce(LayerContext& layer, bool mean) {
  const Ints dims = non_negative_dims(layer, layer.attrs().ints("dims"));
  double count = 1;
  for (int64_t dim : dims) count *= static_cast<double>(layer.shape()[dim]);
  Attrs attrs{{"dims", dims}, {"keep_dims", layer.attrs().flag("keep_dims")}};
  attrs.set("scale", mean ? 1.0 / count : 1.0);
  return emit_one(layer, "reduce_sum", attrs);
}

TensorId reduce_sum(LayerContext& layer) { return reduce(layer, false); }
TensorId reduce_mean(LayerContext& layer) { return reduce(layer, true); }

struct Lowering {
  TensorId (*lower)(LayerContext& layer);
  size_t min_inputs = 1, max_inputs = 1;
};

const std::map<std::string_view, Lowering>& table() {
  static const std::map<std::string_view, Lowering> lowerings = {
      {"flatten", {flatten}},
      {"reshape", {reshape}},
      {"transpose", {transpose}},
      {"dense", {dense}},
      {"matmul", {matmul, 1, 2}},
      {"add", {add, 2, 2}},
      {"mul", {mul, 2, 2}},
      {"relu", {relu}},
      {"sigmoid", {sigmoid}},
      {"tanh", {tanh_layer}},
      {"gelu", {gelu}},
      {"softmax", {softmax}},
      {"dropout", {dropout}},
      {"batch_norm", {batch_norm}},
      {"layer_norm", {layer_norm}},
      {"embedding", {embedding}},
      {"reduce_sum", {reduce_sum}},
      {"reduce_mean", {reduce_mean}},
      {"all_reduce", {lower_all_reduce}},
      {"all_gather", {lower_all_gather}},
      {"reduce_scatter", {lower_reduce_scatter}},
      {"all_to_all", {lower_all_to_all}},
      {"broadcast", {lower_broadcast}},
  };
  return lowerings;
}

}  // namespace

TensorId lower_layer(LayerContext& layer) {
  const auto it = table().find(layer.spec.type);
  if (it == table().end()) shape_error(fmt::format("there is no layer type '{}'", layer.spec.type));
  const auto& [lower, low, high] = it->second;
  const size_t given = layer.inputs.size();
  if (given < low || given > high) {
    const std::string wanted = low == high ? std::to_string(low) : fmt::format("{} or {}", low, high);
    shape_error(
        fmt::format("{} takes {} input{}, it is given {}", layer.spec.type, wanted, high == 1 ? "" : "s", given));
  }
  for (TensorId input : layer.inputs) {
    if (layer.builder.shape(input).empty()) shape_error("its input has no dims");
  }
  return lower(layer);
}

std::vector<std::string> lowered_layer_types() {
  std::vector<std::string> types;
  for (const auto& [type, lowering] : table()) types.emplace_back(type);
  return types;
}

}  // namespace trainctl
