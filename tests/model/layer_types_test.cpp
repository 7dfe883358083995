// Tests that every layer type builds, that it trains if it has weights, and that its output has the expected shape.
#include <doctest/doctest.h>

#include <set>

#include "engine/ops/layer_def.h"
#include "engine/ops/loss_def.h"
#include "engine/spec/parse.h"
#include "tests/model/built.h"
#include "tests/op_cases/op_cases.h"

using namespace trainctl;

namespace {

bool is_collective(const std::string& type) { return find_op(type) != nullptr && get_op(type).collective.has_value(); }

/// The graph of a job around the layer of the row; verify_graph has accepted it. If the layer makes ids, a dense layer
/// `last` reads its output.
Graph build_row(const LayerCase& row, const std::string& precision) {
  const std::string type = row.type, fields = row.fields;
  const int64_t outputs = num_elements(row.shape);
  if (row.of_ids) {
    const bool looks_up = fields.find("looked_up") != std::string::npos;
    const std::string table = "  - {name: looked_up, type: embedding, vocab: 7, units: 3}\n";
    return build("precision: " + precision + "\nnetwork:\n" + (looks_up ? table : "") + "  - {name: layer, type: " +
                     type + fields + "}\n  - {name: last, type: dense, units: 1}\nloss: mse\n",
                 {.shape = {5}, .label = {outputs / 8 / row.shape.back()}, .integer = true});
  }
  std::string input = "first", shaped;
  if (!row.sample.empty()) {
    input = "shaped";
    shaped = "  - {type: dense, units: " + std::to_string(num_elements(row.sample)) +
             ", inputs: [first]}\n  - {name: shaped, type: reshape, shape: " + to_string(row.sample) + "}\n";
  }
  std::string text = "precision: " + precision + R"(
network:
  - {name: first, type: dense, units: 12}
  - {name: second, type: dense, units: 12, inputs: [data]}
)" + shaped +
                     "  - {name: layer, type: " + type +
                     (fields.find("inputs") == std::string::npos ? ", inputs: [" + input + "]" : "") + fields +
                     "}\nloss: {type: mse, input: " + row.output + "}\n";
  if (fields.find("square") != std::string::npos)
    text.insert(text.find("  - {name: layer"), "  - {name: square, type: dense, units: 12, inputs: [first]}\n");
  // Reshapes `first` for layers that need an input of another shape.
  for (const auto& [name, shape] : {std::pair{"rows", "[3, 4]"}, std::pair{"one", "[1, 12]"}}) {
    if (fields.find(std::string("[") + name + "]") == std::string::npos) continue;
    const std::string reshaped =
        std::string("  - {name: ") + name + ", type: reshape, shape: " + shape + ", inputs: [first]}\n";
    text.insert(text.find("  - {name: layer"), reshaped);
  }
  if (is_collective(type)) {
    text += "parallel: {mode: hybrid_parallel, full_batch: true}\nlaunch: {ranks: 4}\n";
  }
  // The number of labels is made equal to the number of the layer's outputs, even if these do not belong to samples
  // here.
  if (outputs % 8 != 0) {
    const size_t loss = text.find("loss:");
    text.replace(loss, text.find('\n', loss) - loss, std::string("print: [") + row.output + "]");
  }
  return build(text, {.label = {outputs / 8}});
}

}  // namespace

TEST_CASE("every layer type builds, forward and backward, with the shape of its row") {
  for (const LayerCase& row : layer_cases()) {
    CAPTURE(std::string(row.type));
    CAPTURE(std::string(row.fields));
    const Graph graph = build_row(row, "fp32");
    CHECK(tensor(graph, row.output).shape == row.shape);
    const bool own_weight = graph.find_tensor("layer.weight").has_value();
    const std::string weight = !row.of_ids  ? "grad.first.weight"
                               : own_weight ? "grad.layer.weight"
                                            : "grad.last.weight";
    const bool trains = graph.find_tensor(weight) || graph.find_tensor(weight + ".use0");
    CHECK(trains == (graph.loss >= 0));
  }
}

TEST_CASE("bf16: activations are bf16, and losses, statistics, states and gradients of parameters are f32") {
  for (const LayerCase& row : layer_cases()) {
    CAPTURE(std::string(row.type));
    CAPTURE(std::string(row.fields));
    const Graph graph = build_row(row, "bf16");
    std::set<TensorId> in_f32;
    if (graph.loss >= 0) in_f32.insert(graph.loss);
    for (const Update& update : graph.updates) in_f32.insert(update.gradients.begin(), update.gradients.end());
    for (const Node& node : graph.nodes) {
      const bool norm = node.op == "layer_norm" || node.op == "rms_norm" || node.op == "group_norm" ||
                        node.op == "attention" || node.op == "lstm" || node.op == "gru",
                 sums = node.op.starts_with("batch_norm_") || node.op == "expert_load" || node.op == "balance_bias" ||
                        node.op == "dora_squares";
      for (size_t o = 0; o < node.outputs.size(); ++o)
        if ((norm && o > 0) || (sums && node.op != "batch_norm_grad")) in_f32.insert(node.outputs[o]);
    }
    for (size_t t = 0; t < graph.tensors.size(); ++t) {
      const Tensor& tensor = graph.tensors[t];
      const bool f32 =
          in_f32.contains(static_cast<TensorId>(t)) || tensor.kind == TensorKind::state || tensor.name == "label";
      const bool ids = (row.of_ids && tensor.name == "data") || tensor.name == "layer.route.1" ||
                       (row.type == std::string("argmax") && tensor.name == "layer");
      CHECK_MESSAGE(tensor.dtype == (ids ? DType::i32 : f32 ? DType::f32 : DType::bf16), tensor.name);
    }
  }
}

TEST_CASE("embedding reads integers and returns a row of the table for each") {
  const Graph graph =
      build("network: [{name: e, type: embedding, vocab: 7, units: 3, init: {type: normal, std: 0.5}}]\nloss: mse\n",
            {.shape = {5}, .label = {15}, .integer = true});
  CHECK(tensor(graph, "e").shape == Shape{8, 5, 3});
  CHECK(tensor(graph, "grad.e.weight").shape == Shape{7, 3});
  CHECK(tensor(graph, "e.weight").init.value == 0.5);
}

TEST_CASE("a norm's scale and shift begin as its job says, else as ones and zeros") {
  for (const char* type : {"batch_norm", "layer_norm", "rms_norm", "group_norm"}) {
    CAPTURE(type);
    const bool shifts = std::string(type) != "rms_norm";
    const std::string groups = std::string(type) == "group_norm" ? ", groups: 2" : "";
    const auto norm = [&](const std::string& fields) {
      return "network:\n  - {name: fc, type: dense, units: 4}\n  - {name: norm, type: " + std::string(type) + groups +
             fields + "}\nloss: mse\n";
    };
    const Data data{.label = {4}};
    const Graph plain = build(norm(""), data);
    CHECK(tensor(plain, "norm.weight").init.value == 1);
    const Graph zero =
        build(norm(", init: zeros" + std::string(shifts ? ", bias_init: {type: constant, value: 0.5}" : "")), data);
    CHECK(tensor(zero, "norm.weight").init.value == 0);
    if (shifts) {
      CHECK(tensor(plain, "norm.bias").init.value == 0);
      CHECK(tensor(zero, "norm.bias").init.value == 0.5);
    }
    const std::vector<std::string> errors = problems(norm(", affine: false, init: zeros"), data);
    REQUIRE(errors.size() == 1);
    CHECK(errors[0].find("there is nothing to initialize: affine is false") != std::string::npos);
  }
}

TEST_CASE("bf16: a table's gradient is f32, the ids stay i32") {
  const Graph graph = build("precision: bf16\nnetwork: [{name: e, type: embedding, vocab: 7, units: 3}]\nloss: mse\n",
                            {.shape = {5}, .label = {15}, .integer = true});
  CHECK(tensor(graph, "data").dtype == DType::i32);
  CHECK(tensor(graph, "e.weight").dtype == DType::bf16);
  CHECK(tensor(graph, "e").dtype == DType::bf16);
  CHECK(tensor(graph, "grad.e.weight").dtype == DType::f32);
}

TEST_CASE("every layer of the list has a doc and a row in its family's cases, and its fields have docs") {
  std::set<std::string> tested, listed;
  for (const LayerCase& row : layer_cases()) tested.insert(row.type);
  for (const LayerDef* layer : all_layers()) {
    CAPTURE(layer->name);
    CHECK_MESSAGE(listed.insert(layer->name).second, "two layers have one name");
    CHECK_MESSAGE(tested.contains(layer->name), "no row of the layer in its family's <folder>_cases.cpp");
    CHECK(std::string(layer->doc).ends_with('.'));
    const bool emits = layer->emit != nullptr;
    CHECK(emits);
    CHECK(layer->min_inputs <= layer->max_inputs);
    for (const Field& field : layer->fields) CHECK_MESSAGE(field.doc.ends_with('.'), field.name);
    const EntryType* type = find_layer_type(layer->name);
    REQUIRE(type != nullptr);
    if (!type->weight_field.empty()) CHECK(type->has_field(type->weight_field));
    if (layer->collective) CHECK(is_collective(layer->name));
  }
  CHECK(layer_types().size() == all_layers().size());
  CHECK(tested == listed);
}

TEST_CASE("a layer takes the number of inputs in its definition") {
  const EntryType& add = *find_layer_type("add");
  CHECK(input_fault(add, {}, 2).empty());
  CHECK(input_fault(add, {}, 1) == "add takes 2 inputs, not 1");
  const EntryType& matmul = *find_layer_type("matmul");
  CHECK(input_fault(matmul, {{"units", int64_t{3}}}, 1).empty());
  CHECK(input_fault(matmul, {{"units", int64_t{3}}}, 2) ==
        "matmul takes 1 input where 'units' gives it its own weight, not 2");
  CHECK(input_fault(matmul, {}, 1) == "matmul takes 2 inputs where it has no 'units', not 1");
}

TEST_CASE("every loss of the list builds on labels of its type") {
  for (const LossDef* loss : all_losses()) {
    if (loss->margins != nullptr) continue;  // it reads other data: model_folders/dpo_test.py
    CAPTURE(loss->name);
    CHECK(std::string(loss->doc) != "");
    const std::string labels = loss->labels_are_classes ? "i32" : "f32";
    std::string text = "network: [{name: d, type: dense, units: 5}]\nloss: " + std::string(loss->name) + "\n";
    if (loss->num_outputs > 1) {
      std::string layers, names;
      for (int i = 0; i < loss->num_outputs; ++i) {
        const std::string name = i == 0 ? "d" : "d" + std::to_string(i);
        layers += (i == 0 ? "" : ", ") + ("{name: " + name + ", type: dense, units: 5, inputs: data}");
        names += (i == 0 ? "" : ", ") + name;
      }
      text = "network: [" + layers + "]\nloss: {type: " + loss->name + ", inputs: [" + names + "]}\n";
    }
    const bool of_sequences = loss->label_use == LabelUse::sequence;
    if (of_sequences)
      text = "network: [{name: d, type: dense, units: 20}, {name: r, type: reshape, shape: [4, 5]}]\nloss: " +
             std::string(loss->name) + "\n";
    const Shape label = of_sequences                                        ? Shape{3}
                        : loss->labels_are_classes || loss->num_outputs > 1 ? Shape{}
                                                                            : Shape{5};
    DataShapes data = data_and_label({12}, label, false, loss->labels_are_classes);
    for (const LossField& field : loss->reads)
      if (!field.is_optional) data.fields.push_back({field.name, {5}, field.is_integer});
    const Graph graph = build_graph(
        parse_job("dataset: {type: random, shape: [12], classes: 5, label_dtype: " + labels + ", batch: 8}\n" + text,
                  "job.yaml"),
        data);
    REQUIRE(graph.loss >= 0);
    CHECK(graph.nodes[graph.tensors[graph.loss].producer].op == loss->op->name);
    CHECK(graph.updates.size() == 2 * static_cast<size_t>(loss->num_outputs));
    if (loss->compose != nullptr) continue;  // the op reads the output of another layer
    const auto gradient = graph.find_tensor("grad.d");
    REQUIRE(gradient);
    CHECK(graph.nodes[graph.tensors[*gradient].producer].op == loss->op->kernel.loss_grad->name);
  }
}
