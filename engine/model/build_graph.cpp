// JobSpec -> Graph, layer by layer. Reports every wrong layer, except those that are wrong only because they read
// the output of another wrong layer.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "engine/base/error.h"
#include "engine/base/layer_errors.h"
#include "engine/base/text.h"
#include "engine/graph/row_dims.h"
#include "engine/model/backward.h"
#include "engine/model/document_rows.h"
#include "engine/model/loss.h"
#include "engine/model/model.h"
#include "engine/model/parameter_groups.h"
#include "engine/ops/attention/key_exchange.h"
#include "engine/ops/attention/score_terms.h"
#include "engine/ops/expect.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/moe/expert_load.h"
#include "engine/spec/adapters.h"
#include "engine/spec/added_layers.h"
#include "engine/spec/reference_model.h"

namespace trainctl {
namespace {

class Model {
 public:
  /// `row_order`: ranks by whose order rows are stored (ops/row_order.h); 0: rows are stored by position.
  Model(const JobSpec& spec, const DataShapes& data, int row_order) : spec_(spec), data_(data), row_order_(row_order) {
    hybrid_ = spec.parallel.mode == ParallelMode::hybrid_parallel;
    ranks_in_stage_ = std::max(1, spec.launch.ranks / std::max(1, spec.parallel.stages));
    batch_ = micro_batch_size();
    if (spec.precision == Precision::bf16) compute_type_ = DType::bf16;
    if (spec.precision == Precision::fp16) compute_type_ = DType::f16;
  }

  Graph build() {
    if (const DataField* first = data_.find("data")) input(*first);
    for (const LayerSpec& layer : spec_.network) check_name(layer);
    for (Diagnostic& wrong : check_adapters(spec_)) errors_.add(std::move(wrong));
    has_reference_ = spec_.loss && needs_reference(spec_.loss->type);
    if (has_reference_ && !spec_.adapters.lora)
      error("loss",
            spec_.loss->type +
                " compares the network with its start, which without adapters would be a second copy "
                "of all weights",
            "add adapters: {lora: {...}}, whose base is the start");
    for (const LayerSpec& layer : spec_.network) {
      add_layer(layer);
      if (has_reference_) add_reference(layer);
      add_layers_beside(layer);
      add_adapter(layer);
    }
    if (spec_.loss) add_loss();
    add_prints();
    if (!errors_.empty()) throw SpecError(errors_.take());
    if (std::vector<Diagnostic> wrong = freeze_parameters(spec_, graph_); !wrong.empty())
      throw SpecError(std::move(wrong));
    if (graph_.loss >= 0) build_backward(graph_);
    refuse_states_of_skipped_steps();
    if (std::vector<Diagnostic> unused = set_parameter_groups(spec_, graph_); !unused.empty())
      throw SpecError(std::move(unused));
    verify_graph(graph_);
    return std::move(graph_);
  }

 private:
  /// A forward pass has changed running statistics when its gradients turn out not to be finite. The load of experts
  /// is that of the last step alone, and nothing but a balance bias reads it.
  void refuse_states_of_skipped_steps() const {
    const bool spikes = spec_.train.on_spike.has_value();
    if (graph_.loss < 0 || (!spikes && spec_.train.on_nan != OnNan::skip)) return;
    const std::string field = spikes ? "train.on_spike" : "train.on_nan";
    for (const Tensor& tensor : graph_.tensors)
      if (tensor.kind == TensorKind::state && !is_expert_load(tensor.name))
        throw SpecError(spec_.position(field), field,
                        "a skipped step would still change the running statistic " + tensor.name,
                        (spikes ? "remove on_spike" : "set train.on_nan: stop or warn") +
                            std::string(tensor.name.ends_with(kBalanceBiasState)
                                            ? ", or balance the experts by an aux_loss instead of a bias"
                                            : ", or use layer_norm or group_norm instead of batch_norm"));
  }

  void error(const std::string& path, std::string message, std::string hint = {}) {
    errors_.add({spec_.position(path), path, std::move(message), std::move(hint)});
  }

  /// Reports an error at the layer, or at one of its fields.
  void layer_error(const LayerSpec& layer, std::string message, const std::string& field = "") {
    const std::string path = field.empty() ? layer.path : layer.path + "." + field;
    errors_.add({spec_.position(path), path, std::move(message), layer.use}, layer.name);
  }

  /// The batch of one pass: the global batch, or in hybrid_parallel what one rank reads, divided into
  /// micro-batches.
  int64_t micro_batch_size() {
    const int64_t ranks = hybrid_ && !spec_.parallel.full_batch ? ranks_in_stage_ : 1;
    const int64_t parts = ranks * spec_.parallel.micro_batches;
    if (parts > 0 && spec_.dataset.batch % parts == 0) return spec_.dataset.batch / parts;
    const std::string by_ranks = ranks > 1 ? fmt::format(" for each of {} ranks", ranks) : "";
    error("dataset.batch",
          fmt::format("a batch of {} samples cannot be divided evenly into {} micro-batches{}", spec_.dataset.batch,
                      spec_.parallel.micro_batches, by_ranks),
          fmt::format("use a multiple of {}", parts));
    throw SpecError(errors_.take());
  }

  TensorId input(const DataField& field) {
    const std::string& name = field.name;
    if (const auto found = outputs_.find(name); found != outputs_.end()) return found->second;
    Tensor tensor{.name = name, .shape = field.shape};
    tensor.shape.insert(tensor.shape.begin(), batch_);
    tensor.dtype = field.is_integer ? DType::i32 : name == "label" ? DType::f32 : compute_type_;
    tensor.kind = TensorKind::input;
    tensor.batch = {.dim = 0, .rows = batch_, .sized = 1};
    try {
      expect_size(name, tensor.shape);
    } catch (const ShapeError& problem) {
      error("dataset.batch", problem.what());
      throw SpecError(errors_.take());
    }
    graph_.tensors.push_back(tensor);
    return outputs_[name] = static_cast<TensorId>(graph_.tensors.size() - 1);
  }

  std::vector<std::string> field_names() const {
    std::vector<std::string> names;
    for (const DataField& field : data_.fields) names.push_back(field.name);
    return names;
  }

  /// The tensor that a layer or the loss names; empty if the layer that makes it is wrong itself.
  std::optional<TensorId> find(const std::string& name, const std::string& path) {
    if (const DataField* field = data_.find(name)) return input(*field);
    if (const auto found = outputs_.find(name); found != outputs_.end()) {
      return found->second < 0 ? std::nullopt : std::optional(found->second);
    }
    std::vector<std::string> names;
    for (const auto& [known, tensor] : outputs_) names.push_back(known);
    if (name == "data" || name == "label")
      error(path, fmt::format("the samples have no field '{}'", name), "fields: " + join(field_names()));
    else
      error(path, fmt::format("there is no earlier layer '{}'", name), did_you_mean(name, names));
    return std::nullopt;
  }

  /// A layer's tensors and nodes are named "<layer>.…", so no other layer may have such a name.
  void check_name(const LayerSpec& layer) {
    if (layer.name == "data" || layer.name == "label" || layer.name == "grad" || layer.name.starts_with("grad.")) {
      error(layer.path, fmt::format("a layer cannot be named '{}'", layer.name), "data, label and grad.* are reserved");
    } else if (data_.find(layer.name) != nullptr) {
      error(layer.path,
            fmt::format("a layer cannot be named '{}', because that is the name of a sample field", layer.name));
    }
    if (names_.empty()) {
      for (const LayerSpec& other : spec_.network) names_.insert(other.name);
      if (spec_.loss) names_.insert("loss");
    }
    for (size_t dot = layer.name.find('.'); dot != std::string::npos; dot = layer.name.find('.', dot + 1)) {
      const std::string prefix = layer.name.substr(0, dot);
      if (!names_.contains(prefix)) continue;
      layer_error(layer, fmt::format("names that start with '{}.' are reserved for layer {}", prefix, prefix));
    }
  }

  void add_layer(const LayerSpec& layer) {
    std::vector<TensorId> inputs;
    bool all = true;
    for (const std::string& name : layer.inputs) {
      const auto tensor = find(name, layer.path);
      all = all && tensor.has_value();
      inputs.push_back(tensor.value_or(-1));
    }
    const std::vector<std::string> names = layer.output_names();
    for (const std::string& name : names) outputs_[name] = -1;
    if (!all) return;
    const std::vector<TensorId> outputs = emit(layer, inputs, layer.name, "");
    for (size_t i = 0; i < outputs.size(); ++i) outputs_[names[i]] = outputs[i];
  }

  /// Emits the layer under a name, with the parameters of an earlier layer (or its own). Returns its outputs, none if
  /// it is wrong.
  std::vector<TensorId> emit(const LayerSpec& layer, const std::vector<TensorId>& inputs, const std::string& name,
                             const std::string& owner) {
    graph_.layers.push_back({.name = name, .type = layer.type, .pos = spec_.position(layer.path)});
    LayerBuilder builder(graph_, static_cast<LayerId>(graph_.layers.size() - 1), compute_type_, owner);
    try {
      const LayerDef* def = find_layer(layer.type);
      if (def == nullptr) shape_error(fmt::format("there is no layer type '{}'", layer.type));
      const Attrs attrs = with_defaults(layer.attrs, def->fields);
      LayerContext context{*def,
                           graph_,
                           builder,
                           attrs,
                           inputs,
                           ranks_in_stage_,
                           hybrid_,
                           spec_.parallel.micro_batches,
                           spec_.parallel.context,
                           row_order_};
      const std::string& owned = owner.empty() ? name : owner;
      context.packing = packing_of(to_string(storage_of(spec_, owned + ".weight")));
      const std::vector<TensorId> outputs = emit_layer(context);
      builder.finish(outputs, layer.outputs);
      return outputs;
    } catch (const ShapeError& problem) {
      layer_error(layer, problem.what(), problem.field);
      return {};
    }
  }

  static LayerSpec without_training_attr(LayerSpec layer, const OpDef* op) {
    if (op != nullptr && op->training_attr != nullptr) layer.attrs.erase(op->training_attr);
    return layer;
  }

  /// The layer in the reference model (reference_model.h), which has neither adapters nor dropout. It is the layer
  /// itself as long as no adapter comes before it.
  void add_reference(const LayerSpec& layer) {
    const std::vector<std::string> names = layer.output_names();
    std::vector<TensorId> inputs;
    const OpDef* const op = find_op(layer.type);
    const bool passes_on = op != nullptr && op->in_evaluation == InEvaluation::passes_on;
    const LayerSpec evaluated = without_training_attr(layer, op);
    bool differs = passes_on || evaluated.attrs != layer.attrs;
    for (const std::string& name : layer.inputs) {
      const auto trained = outputs_.find(name), reference = references_.find(name);
      if (trained == outputs_.end() || trained->second < 0) return;  // reported already
      inputs.push_back(reference == references_.end() ? trained->second : reference->second);
      differs = differs || inputs.back() != trained->second;
    }
    std::vector<TensorId> outputs;
    if (!differs)
      for (const std::string& name : names) outputs.push_back(outputs_[name]);
    else if (passes_on)
      outputs = inputs;
    else if (outputs_[names.front()] >= 0)
      outputs = emit(evaluated, inputs, reference_layer(layer.name), layer.name);
    for (size_t i = 0; i < outputs.size(); ++i) references_[names[i]] = outputs[i];
  }

  /// The layers that the layer adds (EntryType::added); its readers then read the last of them.
  void add_layers_beside(const LayerSpec& beside) {
    const std::vector<LayerSpec> layers = added_layers(beside);
    if (layers.empty() || outputs_[beside.name] < 0) return;
    const int64_t features = graph_.tensors[outputs_[beside.name]].shape.back();
    for (LayerSpec layer : layers) {
      const LayerDef& def = *find_layer(layer.type);
      const auto lacks = [&](const Field& field) { return field.name == "units" && !layer.attrs.has(field.name); };
      if (std::any_of(def.fields.begin(), def.fields.end(), lacks)) layer.attrs.set("units", features);
      add_layer(layer);
      if (has_reference_) add_reference(layer);
      add_adapter(layer);
    }
    outputs_[beside.name] = outputs_[layers.back().name];
    if (const auto last = references_.find(layers.back().name); last != references_.end())
      references_[beside.name] = last->second;
  }

  /// Every reader of the layer then reads the sum of it and its adapter.
  void add_adapter(const LayerSpec& beside) {
    const std::vector<LayerSpec> layers = adapter_layers(spec_, beside);
    if (layers.empty() || outputs_[beside.name] < 0) return;
    for (const LayerSpec& layer : layers) add_layer(layer);
    outputs_[beside.name] = outputs_[layers.back().name];
  }

  std::vector<std::string> outputs_of_loss(const std::string& prediction) const {
    return spec_.loss->inputs.empty() ? std::vector<std::string>{prediction} : spec_.loss->inputs;
  }

  /// Adds the losses with the outputs that they read, and reports layers that do not exist.
  void add_loss() {
    std::string name = spec_.loss->input;
    if (name.empty() && !spec_.network.empty()) name = spec_.network.back().name;
    std::vector<LossOutputs> losses;
    for (const LossSpec* loss : spec_.losses()) {
      losses.push_back({loss, {}});
      for (const std::string& output : loss == &*spec_.loss ? outputs_of_loss(name) : loss->outputs_read()) {
        const auto found = find(output, loss->path);
        if (!found) return;
        losses.back().outputs.push_back(*found);
      }
    }
    const double shares = static_cast<double>(spec_.parallel.micro_batches) * (hybrid_ ? ranks_in_stage_ : 1);
    const double copies = hybrid_ && spec_.parallel.full_batch ? static_cast<double>(ranks_in_stage_) : 1;
    LossContext context{graph_, spec_, data_, batch_, shares, copies};
    if (has_reference_) {
      const auto targets = find("targets", "loss");
      const auto reference = references_.find(name);
      if (!targets || reference == references_.end()) return;
      context.targets = *targets;
      context.reference = reference->second;
    }
    try {
      graph_.loss = build_loss(context, losses);
    } catch (const ShapeError& problem) {
      error("loss", problem.what());
    } catch (const SpecError& problem) {  // from a metric
      for (const Diagnostic& diagnostic : problem.diagnostics()) errors_.add(diagnostic);
    }
  }

  void add_prints() {
    for (size_t i = 0; i < spec_.print.tensors.size(); ++i) {
      const auto tensor = find(spec_.print.tensors[i], fmt::format("print.tensors[{}]", i));
      if (tensor) graph_.prints.push_back(*tensor);
    }
  }

  const JobSpec& spec_;
  const DataShapes& data_;
  const int row_order_;
  bool has_reference_ = false;
  std::map<std::string, TensorId> references_;  ///< by name, the outputs of layers in the reference model
  bool hybrid_ = false;
  int ranks_in_stage_ = 1;
  int64_t batch_ = 1;
  DType compute_type_ = DType::f32;  ///< dtype of data, parameters and everything computed from them
  Graph graph_;
  std::map<std::string, TensorId> outputs_;  ///< outputs of layers and inputs, by name; -1: that layer is wrong
  std::set<std::string> names_;              ///< names of all layers, and "loss"
  LayerErrors errors_;
};

/// True if the rows of the sequences are stored such that ranks that share them have equal work: attention is causal,
/// and nothing but the ops that know the order of rows depends on it.
bool balances_rows(const JobSpec& spec, const Graph& graph) {
  const int64_t pieces = int64_t{2} * spec.parallel.context;
  if (pieces == 2 || !graph.prints.empty()) return false;
  bool is_causal = false;
  for (const Node& node : graph.nodes) {
    if (get_op(node.op).in_evaluation == InEvaluation::passes_on) return false;  // dropout masks depend on positions
    if (node.attrs.has(kScoreBias)) return false;  // a bias has its rows and keys by position
    if (!node.attrs.flag(kExchangesKeys)) {
      if (node.attrs.flag("causal")) return false;  // attention to the rows of another sequence
      continue;
    }
    is_causal = is_causal || node.attrs.flag("causal");
    if (graph.tensors[static_cast<size_t>(node.inputs[0])].shape[1] % pieces != 0) return false;
  }
  return is_causal && rows_may_be_reordered(graph);
}

}  // namespace

const DataField* DataShapes::find(std::string_view name) const {
  for (const DataField& field : fields)
    if (field.name == name) return &field;
  for (const DataField& field : fields)
    if (name == "data" && field.name != "label") return &field;
  return nullptr;
}

DataShapes data_and_label(Shape data, Shape label, bool data_is_integer, bool label_is_integer) {
  return {{{"data", std::move(data), data_is_integer}, {"label", std::move(label), label_is_integer}}};
}

Graph build_graph(const JobSpec& spec, const DataShapes& data) {
  Graph graph = Model(spec, data, 0).build();
  if (!balances_rows(spec, graph)) return graph;
  graph = Model(spec, data, spec.parallel.context).build();
  divide_documents(spec.parallel, graph);
  return graph;
}

}  // namespace trainctl
