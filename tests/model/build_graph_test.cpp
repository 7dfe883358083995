// Tests of the graph of a job: forward pass, loss, backward pass and updates.
#include <doctest/doctest.h>

#include <cmath>

#include "engine/base/text.h"
#include "tests/model/built.h"

using namespace trainctl;
using Lines = std::vector<std::string>;

namespace {

const char* const kMlp = R"(network:
  - {type: flatten, name: flat}
  - {name: layer1, type: dense, units: 6}
  - {name: relu1, type: relu}
  - {name: layer2, type: dense, units: 1}
loss: mae
)";

Lines updates(const Graph& graph) {
  Lines lines;
  for (const Update& update : graph.updates) {
    lines.push_back(graph.tensors[update.parameter].name + " from");
    for (TensorId gradient : update.gradients) lines.back() += " " + graph.tensors[gradient].name;
  }
  return lines;
}

}  // namespace

TEST_CASE("an MLP is products, biases, activations, and the same in reverse") {
  const Graph graph = build(kMlp, {.shape = {3, 4}});
  CHECK(nodes(graph, Phase::forward) == Lines{"flat = reshape(data)", "layer1.matmul = matmul(flat, layer1.weight)",
                                              "layer1 = add_bias(layer1.matmul, layer1.bias)", "relu1 = relu(layer1)",
                                              "layer2.matmul = matmul(relu1, layer2.weight)",
                                              "layer2 = add_bias(layer2.matmul, layer2.bias)",
                                              "loss = mae(layer2, label)"});
  CHECK(join(nodes(graph, Phase::backward), "\n") ==
        join(Lines{"grad.layer2 = mae_grad(layer2, label)", "grad.layer2.bias = bias_grad(grad.layer2)",
                   "grad.relu1 = matmul(grad.layer2, layer2.weight)",
                   "grad.layer2.weight = matmul_weight_grad(relu1, grad.layer2)",
                   "grad.layer1 = relu_grad(grad.relu1, relu1)", "grad.layer1.bias = bias_grad(grad.layer1)",
                   "grad.layer1.weight = matmul_weight_grad(flat, grad.layer1)"},
             "\n"));
  CHECK(updates(graph) == Lines{"layer1.weight from grad.layer1.weight", "layer1.bias from grad.layer1.bias",
                                "layer2.weight from grad.layer2.weight", "layer2.bias from grad.layer2.bias"});
  CHECK(graph.tensors[graph.loss].name == "loss");
  CHECK(graph.tensors[graph.loss].shape == Shape{1});
  CHECK(tensor(graph, "layer1.weight").shape == Shape{6, 12});
  CHECK(tensor(graph, "layer1.weight").init.kind == Init::Kind::uniform);
  CHECK(tensor(graph, "layer1.bias").init.value == doctest::Approx(1 / std::sqrt(12.0)));
}

TEST_CASE("a strategy addresses data inputs, then parameters, in the layer's factors") {
  const Graph graph = build(kMlp, {.shape = {3, 4}});
  const Layer& dense = layer(graph, "layer1");
  REQUIRE(dense.inputs.size() == 3);
  CHECK(graph.tensors[dense.inputs[0]].name == "flat");
  CHECK(graph.tensors[dense.inputs[1]].name == "layer1.weight");
  CHECK(graph.tensors[dense.inputs[2]].name == "layer1.bias");
  CHECK(to_string(Rule{dense.input_rules, dense.output_rules}, dense.factors) == "mk,nk,n->mn");
  CHECK(graph.tensors[dense.outputs[0]].name == "layer1");
  const Layer& loss = layer(graph, "loss");
  CHECK(loss.type == "mae");
  CHECK(to_string(Rule{loss.input_rules, loss.output_rules}, loss.factors) == "ab,ab->()");
}

TEST_CASE("the loss is the mean over the global batch: micro-batches share the scale") {
  const std::string text = std::string(kMlp) + "parallel: {mode: semi_auto_parallel, micro_batches: 4}\n";
  const Graph graph = build(text);
  CHECK(tensor(graph, "data").shape == Shape{2, 12});
  const Node& loss = graph.nodes[graph.tensors[graph.loss].producer];
  CHECK(loss.attrs.number("scale") == doctest::Approx(1.0 / 8));
}

TEST_CASE("the last op of a loss of several ops has the scale of the mean, and the fields that its kernel reads") {
  // The field `activation` of dice is no activation of an epilogue.
  const Graph graph =
      build("network:\n  - {name: out, type: dense, units: 3}\nloss: {type: dice, activation: sigmoid}\n",
            {.shape = {4, 5}, .label = {4, 3}});
  const Node& last = graph.nodes[tensor(graph, "loss").producer];
  CHECK(last.op == "mean_value");
  CHECK(last.attrs == Attrs{{"scale", 1.0 / (8 * 3)}});
  const Graph cosines = build(
      "network:\n  - {name: a, type: dense, units: 3}\n  - {name: b, type: dense, units: 3, inputs: data}\n"
      "loss: {type: cosine_embedding, inputs: [a, b], margin: 0.1}\n",
      {.shape = {4, 5}, .label = {4}});
  CHECK(cosines.nodes[tensor(cosines, "loss").producer].attrs == Attrs{{"margin", 0.1}, {"scale", 1.0 / (8 * 4)}});
}

TEST_CASE("a label takes the prediction's shape if the numbers of elements are equal") {
  CHECK(tensor(build(kMlp), "label").shape == Shape{8, 1});
  const Graph classes =
      build("network: [{type: dense, units: 5}]\nloss: softmax_cross_entropy\n", {.label = {1}, .integer_label = true});
  CHECK(tensor(classes, "label").shape == Shape{8});
  CHECK(tensor(classes, "label").dtype == DType::i32);
  CHECK(classes.nodes[classes.tensors[classes.loss].producer].attrs.number("scale") == doctest::Approx(1.0 / 8));
}

TEST_CASE("an activation that several layers read gets its gradients added in its producer's layer") {
  const Graph graph = build(R"(network:
  - {name: a, type: dense, units: 12, bias: false}
  - {name: b, type: relu}
  - {name: c, type: add, inputs: [a, b]}
  - {name: d, type: mul, inputs: [c, a]}
loss: {type: mse, input: d}
)",
                            {.label = {12}});
  CHECK(join(nodes(graph, Phase::backward), "\n") ==
        join(Lines{"grad.d = mse_grad(d, label)", "grad.c = mul(grad.d, a)", "grad.a.use0 = mul(grad.d, c)",
                   "grad.a.use2 = relu_grad(grad.c, b)", "grad.a.sum1 = add(grad.a.use0, grad.c)",
                   "grad.a = add(grad.a.sum1, grad.a.use2)", "grad.a.weight = matmul_weight_grad(data, grad.a)"},
             "\n"));
  const auto sum = graph.find_tensor("grad.a");
  const Node& node = graph.nodes[graph.tensors[*sum].producer];
  CHECK(graph.layers[node.layer].name == "a");
  CHECK(to_string(node.rule, graph.layers[node.layer].factors) == "mn,mn->mn");
}

TEST_CASE("a tensor that one layer reads twice gets both gradients") {
  const Graph graph = build(R"(network:
  - {name: a, type: dense, units: 1, bias: false}
  - {name: square, type: mul, inputs: [a, a]}
loss: mae
)");
  CHECK(layer(graph, "square").inputs.size() == 2);
  CHECK(join(nodes(graph, Phase::backward), "\n") ==
        join(Lines{"grad.square = mae_grad(square, label)", "grad.a.use0 = mul(grad.square, a)",
                   "grad.a.use1 = mul(grad.square, a)", "grad.a = add(grad.a.use0, grad.a.use1)",
                   "grad.a.weight = matmul_weight_grad(data, grad.a)"},
             "\n"));
}

TEST_CASE("a shared weight is one parameter whose update sums a gradient of each layer") {
  const Graph graph = build(R"(network:
  - {name: embed, type: embedding, vocab: 9, units: 4}
  - {name: hidden, type: dense, units: 4}
  - {name: head, type: dense, units: 9, bias: false, share: embed}
loss: softmax_cross_entropy
)",
                            {.shape = {5}, .label = {5}, .integer = true, .integer_label = true});
  CHECK(tensor(graph, "data").dtype == DType::i32);
  CHECK_FALSE(graph.find_tensor("head.weight"));
  CHECK(updates(graph)[0] == "embed.weight from grad.embed.weight.use0 grad.embed.weight.use1");
  CHECK(layer(graph, "head").inputs ==
        std::vector<TensorId>{*graph.find_tensor("hidden"), *graph.find_tensor("embed.weight")});
  CHECK(tensor(graph, "embed.weight").init.kind == Init::Kind::normal);
}

TEST_CASE("there is no backward pass without a loss, nor for tensors that only data feeds") {
  const Graph forward = build("network: [{name: fc, type: dense, units: 3}]\nprint: [fc]\n");
  CHECK(forward.loss == -1);
  CHECK(forward.updates.empty());
  CHECK(nodes(forward, Phase::backward).empty());
  CHECK_FALSE(forward.find_tensor("label"));
  CHECK(forward.prints == std::vector<TensorId>{*forward.find_tensor("fc")});

  const Graph graph = build("network: [{name: r, type: relu}, {name: fc, type: dense, units: 1}]\nloss: mae\n");
  CHECK_FALSE(graph.find_tensor("grad.r"));
  const Graph no_parameters = build("network: [{name: r, type: relu}]\nloss: mae\n", {.shape = {1}});
  CHECK(nodes(no_parameters, Phase::backward).empty());
}

TEST_CASE("layers that the loss does not need have no backward nodes and no updates") {
  const Graph graph = build(R"(network:
  - {name: a, type: dense, units: 1, bias: false}
  - {name: aside, type: dense, units: 2, bias: false}
loss: {type: mae, input: a}
print: [aside]
)");
  CHECK(updates(graph) == Lines{"a.weight from grad.a.weight"});
  CHECK_FALSE(graph.find_tensor("grad.a.use0"));
}

TEST_CASE("batch_norm's statistics are separate nodes, and its sums serve dx and the parameters") {
  const Graph graph = build(R"(network:
  - {name: fc, type: dense, units: 1, bias: false}
  - {name: bn, type: batch_norm}
loss: mae
)");
  const Lines forward = nodes(graph, Phase::forward);
  CHECK(Lines(forward.begin() + 1, forward.end() - 1) ==
        Lines{"bn.mean = batch_norm_mean(fc)", "bn.var = batch_norm_var(fc, bn.mean)",
              " = batch_norm_running(bn.mean, bn.var, bn.running_mean, bn.running_var)",
              "bn = batch_norm(fc, bn.mean, bn.var, bn.weight, bn.bias)"});
  CHECK(nodes(graph, Phase::backward)[1] ==
        "grad.bn.bias, grad.bn.weight = batch_norm_grad_stats(grad.bn, fc, bn.mean, bn.var)");
  CHECK(nodes(graph, Phase::backward)[2] ==
        "grad.fc = batch_norm_grad(grad.bn, fc, bn.mean, bn.var, grad.bn.bias, grad.bn.weight, bn.weight)");
  const Layer& bn = layer(graph, "bn");
  CHECK(to_string(Rule{bn.input_rules, bn.output_rules}, bn.factors) == "nc,c,c->nc");
  CHECK(tensor(graph, "bn.running_var").kind == TensorKind::state);
  CHECK(tensor(graph, "bn.running_var").init.value == 1.0);
}

TEST_CASE("hybrid_parallel builds one rank's part") {
  const std::string network =
      "network: [{name: fc, type: dense, units: 4}, {name: all, type: all_gather}]\nloss: mae\n";
  const std::string parallel = "parallel: {mode: hybrid_parallel, micro_batches: 2";
  const Graph part = build(network + parallel + "}\nlaunch: {ranks: 2}\n", {.label = {8}});
  CHECK(tensor(part, "data").shape == Shape{2, 12});  // 8 / 2 ranks / 2 micro-batches
  CHECK(tensor(part, "all").shape == Shape{4, 4});
  CHECK(part.nodes[part.tensors[part.loss].producer].attrs.number("scale") == doctest::Approx(1.0 / (16 * 2 * 2)));
  const Node& gather = part.nodes[tensor(part, "all").producer];
  CHECK(gather.attrs.integer("group_size") == 2);
  CHECK(to_string(gather.attrs).find("group: [[0, 1]]") != std::string::npos);

  const Graph full = build(network + parallel + ", full_batch: true}\nlaunch: {ranks: 2}\n", {.label = {8}});
  CHECK(tensor(full, "data").shape == Shape{4, 12});
}

TEST_CASE("ranks of hybrid_parallel that read the same rows count a summed loss once") {
  const auto scale = [](const std::string& parallel) {
    const Graph graph = build(
        "network: [{name: fc, type: dense, units: 8}]\nloss: {type: mae, reduction: sum, weight: 0.5}\nparallel: "
        "{mode: "
        "hybrid_parallel" +
            parallel + "}\nlaunch: {ranks: 2}\n",
        {.label = {8}});
    return graph.nodes[graph.tensors[graph.loss].producer].attrs.number("scale");
  };
  CHECK(scale("") == doctest::Approx(0.5));
  CHECK(scale(", full_batch: true") == doctest::Approx(0.25));
}

TEST_CASE("a mixture may skip steps: its load is that of the last step, but a bias that balances it is kept") {
  const auto mixture = [](const std::string& router) {
    return "network:\n  - {name: moe, type: moe, experts: 4, top_k: 2, hidden: 8, router: {" + router +
           "}}\nloss: mse\ntrain: {on_nan: skip, steps: 3}\n";
  };
  const Data rows{.shape = {4, 6}, .label = {4, 6}};
  CHECK(build(mixture("balance: aux_loss, z_loss: 0.1"), rows).find_tensor("moe.expert_load"));
  const std::vector<std::string> refused = problems(mixture("balance: bias"), rows);
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].find("would still change the running statistic moe.balance_bias") != std::string::npos);
}

TEST_CASE("a repeated module builds layers with full names") {
  const Graph graph = build(R"(modules:
  block:
    - {name: fc, type: dense, units: 12}
    - {name: act, type: gelu}
    - {name: sum, type: add, inputs: [input, act]}
network:
  - {module: block, name: h, repeat: 2}
  - {name: out, type: dense, units: 1}
loss: mae
)");
  CHECK(tensor(graph, "h.1.fc.weight").shape == Shape{12, 12});
  const Node& sum = graph.nodes[tensor(graph, "h.1.sum").producer];
  CHECK(graph.tensors[sum.inputs[0]].name == "h.0.sum");
}
