// Looking up, printing and verifying a graph built by hand: x -> relu -> y, and the gradient of x.
#include "engine/graph/graph.h"

#include <doctest/doctest.h>

#include <functional>

#include "engine/base/error.h"

using namespace trainctl;

namespace {

Graph small_graph() {
  Graph g;
  g.tensors = {{.name = "w", .shape = {2, 3}, .kind = TensorKind::parameter, .init = {Init::Kind::uniform, 0.5}},
               {.name = "y", .shape = {2, 3}, .kind = TensorKind::activation, .producer = 0},
               {.name = "z", .shape = {2, 3}, .kind = TensorKind::activation, .producer = 1},
               {.name = "grad.w", .shape = {2, 3}, .kind = TensorKind::gradient, .producer = 2}};
  const TensorRule ab = {{0}, {1}};
  g.nodes = {{.name = "y", .op = "relu", .inputs = {0}, .outputs = {1}, .rule = {{ab}, {ab}}, .layer = 0},
             {.name = "z", .op = "mul", .inputs = {1, 1}, .outputs = {2}, .rule = {{ab, ab}, {ab}}, .layer = 0},
             {.name = "y.grad_w",
              .op = "relu_grad",
              .inputs = {2, 1},
              .outputs = {3},
              .rule = {{ab, ab}, {ab}},
              .layer = 0,
              .phase = Phase::backward}};
  g.layers = {{.name = "layer", .type = "relu", .factors = {{"a", 2}, {"b", 3}}}};
  g.layers[0].inputs = {0};
  g.layers[0].input_rules = {ab};
  g.layers[0].outputs = {2};
  g.layers[0].output_rules = {ab};
  g.updates = {{0, {3}}};
  g.prints = {2};
  return g;
}

struct Fault {
  const char* what;  ///< a part of the message
  std::function<void(Graph&)> make;
};

}  // namespace

TEST_CASE("tensors and layers are found by name, consumers in node order") {
  const Graph g = small_graph();
  CHECK(g.find_tensor("z") == 2);
  CHECK_FALSE(g.find_tensor("nothing"));
  CHECK(g.find_layer("layer") == 0);
  CHECK_FALSE(g.find_layer("y"));
  CHECK(g.consumers(1) == std::vector<NodeId>{1, 2});
  CHECK(g.consumers(3).empty());
}

TEST_CASE("a graph prints one line per tensor, node and update") {
  CHECK(to_string(small_graph()) ==
        "tensors\n"
        "  w f32 [2, 3] parameter = uniform(-0.5, 0.5)\n"
        "  y f32 [2, 3] activation\n"
        "  z f32 [2, 3] activation\n"
        "  grad.w f32 [2, 3] gradient\n"
        "nodes\n"
        "  forward  y: y = relu(w)  ab->ab\n"
        "  forward  z: z = mul(y, y)  ab,ab->ab\n"
        "  backward y.grad_w: grad.w = relu_grad(z, y)  ab,ab->ab\n"
        "updates\n"
        "  w from grad.w\n");
}

TEST_CASE("a sound graph passes verify_graph") { CHECK_NOTHROW(verify_graph(small_graph())); }

TEST_CASE("verify_graph finds each kind of fault") {
  const std::vector<Fault> faults = {
      {"two tensors are named y", [](Graph& g) { g.tensors[2].name = "y"; }},
      {"two nodes are named y", [](Graph& g) { g.nodes[1].name = "y"; }},
      {"two layers named", [](Graph& g) { g.layers.push_back(g.layers[0]); }},
      {"y reads z before it is produced", [](Graph& g) { g.nodes[0].inputs = {2}; }},
      {"no such tensor", [](Graph& g) { g.nodes[0].inputs = {9}; }},
      {"no such layer", [](Graph& g) { g.nodes[0].layer = 3; }},
      {"no such factor",
       [](Graph& g) {
         g.nodes[0].rule.inputs[0] = {{0}, {5}};
       }},
      {"a factor is used twice",
       [](Graph& g) {
         g.nodes[0].rule.inputs[0] = {{0}, {0}};
       }},
      {"its factors multiply to 2",
       [](Graph& g) {
         g.tensors[0].shape = {4, 3};
       }},
      {"the rule of w has 1 dims", [](Graph& g) { g.nodes[0].rule.inputs[0] = {{0}}; }},
      {"the number of tensors differs", [](Graph& g) { g.nodes[1].rule.inputs.pop_back(); }},
      {"its producer is another node", [](Graph& g) { g.tensors[1].producer = 1; }},
      {"its producer disagrees with its kind", [](Graph& g) { g.tensors[1].producer = -1; }},
      {"kind and phase disagree", [](Graph& g) { g.tensors[1].kind = TensorKind::gradient; }},
      {"forward after backward",
       [](Graph& g) {
         g.nodes[1].phase = Phase::backward, g.nodes[2].phase = Phase::forward,
         g.tensors[2].kind = TensorKind::gradient, g.tensors[3].kind = TensorKind::activation;
       }},
      {"w is updated twice", [](Graph& g) { g.updates.push_back(g.updates[0]); }},
      {"y is updated, but is not a parameter", [](Graph& g) { g.updates[0].parameter = 1; }},
      {"w is updated from no gradient", [](Graph& g) { g.updates[0].gradients.clear(); }},
      {"the loss has shape [1]", [](Graph& g) { g.loss = 2; }},
      {"print names a tensor", [](Graph& g) { g.prints = {7}; }},
      {"layer outputs", [](Graph& g) { g.layers[0].output_rules.clear(); }},
  };
  for (const Fault& fault : faults) {
    CAPTURE(std::string(fault.what));
    Graph g = small_graph();
    fault.make(g);
    std::string message;
    try {
      verify_graph(g);
    } catch (const InternalError& error) {
      message = error.what();
    }
    CHECK_MESSAGE(message.find(fault.what) != std::string::npos, message);
  }
}
