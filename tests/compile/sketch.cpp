// Builds graphs, plans and programs by hand for the compiler's tests.
#include "tests/compile/sketch.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/compile/compile.h"

namespace trainctl {

TensorId GraphSketch::tensor(std::string name, Shape shape, TensorKind kind) {
  Tensor t;
  t.name = std::move(name);
  t.shape = std::move(shape);
  t.kind = kind;
  graph.tensors.push_back(std::move(t));
  return static_cast<TensorId>(graph.tensors.size()) - 1;
}

void GraphSketch::layer(std::string name, std::vector<std::pair<std::string, int64_t>> factors) {
  Layer l;
  l.name = std::move(name);
  for (auto& [letter, size] : factors) l.factors.push_back({letter, size, true, ""});
  graph.layers.push_back(std::move(l));
}

Shape GraphSketch::shape_of(const TensorRule& rule) const {
  Shape shape;
  for (const DimRule& dim : rule) {
    int64_t size = 1;
    for (int f : dim) size *= graph.layers.back().factors[f].size;
    shape.push_back(size);
  }
  return shape;
}

TensorId GraphSketch::node(std::string op, std::string rule, std::vector<TensorId> inputs, std::string output,
                           Phase phase, Attrs attrs) {
  const RuleLetters letters = parse_rule(rule);
  const auto factors = [&](const std::vector<std::string>& dims) {
    TensorRule result;
    for (const std::string& dim : dims) {
      DimRule indices;
      for (char letter : dim) {
        const auto& all = graph.layers.back().factors;
        const auto found = std::find_if(all.begin(), all.end(), [&](const Factor& f) { return f.name[0] == letter; });
        check(found != all.end(), "a letter of the rule is a factor of the layer");
        indices.push_back(static_cast<int>(found - all.begin()));
      }
      result.push_back(indices);
    }
    return result;
  };
  Node n;
  n.op = std::move(op);
  n.attrs = std::move(attrs);
  n.inputs = std::move(inputs);
  n.layer = static_cast<LayerId>(graph.layers.size()) - 1;
  n.phase = phase;
  for (const auto& dims : letters.inputs) n.rule.inputs.push_back(factors(dims));
  for (const auto& dims : letters.outputs) n.rule.outputs.push_back(factors(dims));
  n.name = output.starts_with("grad.") ? output.substr(5) + ".backward" : output;
  const TensorKind kind = phase == Phase::forward ? TensorKind::activation : TensorKind::gradient;
  const TensorId out = tensor(std::move(output), shape_of(n.rule.outputs[0]), kind);
  graph.tensors[out].producer = static_cast<NodeId>(graph.nodes.size());
  n.outputs = {out};
  graph.nodes.push_back(std::move(n));
  return out;
}

namespace {

struct DenseLayer {
  std::string name;
  int64_t in, out;
  TensorId x, y, weight, bias, activated;
};

/// Backward nodes belong to the layer of their forward node, so layers are revisited in reverse.
class MlpBackward {
 public:
  MlpBackward(GraphSketch& sketch, int64_t batch) : s_(sketch), batch_(batch) {}

  TensorId dense(const DenseLayer& d, TensorId dy, bool needs_dx) {
    at(d.name);
    const TensorId db = node("bias_grad", "no->o", {dy}, "grad." + d.name + ".bias", {d.out});
    const TensorId dw = node("matmul_weight_grad", "ni,no->oi", {d.x, dy}, "grad." + d.name + ".weight", {d.out, d.in});
    s_.graph.updates.push_back({d.weight, {dw}});
    s_.graph.updates.push_back({d.bias, {db}});
    return needs_dx ? node("matmul", "no,oi->ni", {dy, d.weight}, "grad.input." + d.name, {batch_, d.in}) : -1;
  }
  TensorId relu(const std::string& name, TensorId dy, TensorId y, int64_t width) {
    at(name);
    return node("relu_grad", "no,no->no", {dy, y}, "grad." + name, {batch_, width});
  }

 private:
  void at(const std::string& layer) { layer_ = s_.graph.find_layer(layer).value(); }

  TensorId node(std::string op, std::string rule, std::vector<TensorId> inputs, std::string output, Shape shape) {
    // The sketch writes into the last layer: lend it this one's factors.
    Layer lent = s_.graph.layers[layer_];
    s_.graph.layers.push_back(lent);
    const TensorId out = s_.node(std::move(op), std::move(rule), std::move(inputs), std::move(output), Phase::backward);
    s_.graph.layers.pop_back();
    s_.graph.nodes.back().layer = layer_;
    check(s_.graph.tensors[out].shape == shape, "the rule gives the shape");
    return out;
  }

  GraphSketch& s_;
  int64_t batch_;
  LayerId layer_ = -1;
};

}  // namespace

Graph mlp_graph(int64_t batch, int64_t in, const std::vector<int64_t>& units) {
  GraphSketch s;
  TensorId x = s.tensor("data", {batch, in}, TensorKind::input);
  const TensorId label = s.tensor("label", {batch, units.back()}, TensorKind::input);
  std::vector<DenseLayer> layers;
  int64_t width = in;
  for (size_t i = 0; i < units.size(); ++i) {
    const std::string number = std::to_string(i + 1);
    DenseLayer d{"layer" + number, width, units[i], x, -1, -1, -1, -1};
    s.layer(d.name, {{"n", batch}, {"i", width}, {"o", units[i]}});
    d.weight = s.tensor(d.name + ".weight", {units[i], width}, TensorKind::parameter);
    d.bias = s.tensor(d.name + ".bias", {units[i]}, TensorKind::parameter);
    const TensorId product = s.node("matmul", "ni,oi->no", {x, d.weight}, d.name + ".matmul", Phase::forward);
    x = d.y = s.node("add_bias", "no,o->no", {product, d.bias}, d.name, Phase::forward);
    width = units[i];
    if (i + 1 < units.size()) {
      s.layer("relu" + number, {{"n", batch}, {"o", width}});
      x = s.node("relu", "no->no", {x}, "relu" + number, Phase::forward);
    }
    d.activated = x;
    layers.push_back(d);
  }
  s.layer("loss", {{"n", batch}, {"o", width}});
  s.graph.loss = s.node("mae", "no,no->()", {x, label}, "loss", Phase::forward, {{"scale", 1.0}});
  TensorId dy = s.node("mae_grad", "no,no->no", {x, label}, "grad.prediction", Phase::backward, {{"scale", 1.0}});
  MlpBackward backward(s, batch);
  for (size_t i = layers.size(); i-- > 0;) {
    if (i + 1 < layers.size())
      dy = backward.relu("relu" + std::to_string(i + 1), dy, layers[i].activated, layers[i].out);
    dy = backward.dense(layers[i], dy, i > 0);
  }
  return std::move(s.graph);
}

Plan data_parallel_plan(const Graph& graph, int ranks, int stages, int micro_batches) {
  Plan plan;
  plan.mode = ParallelMode::data_parallel;
  plan.ranks = ranks;
  plan.num_stages = stages;
  plan.micro_batches = micro_batches;
  plan.mesh = Mesh(ranks / stages);
  Axes all;
  for (Axis a = 0; a < plan.mesh.num_axes(); ++a) all.push_back(a);
  const int layers = static_cast<int>(graph.layers.size());
  for (int l = 0; l < layers; ++l) {
    LayerPlan layer;
    layer.virtual_stage = l * stages / layers;
    for (const Factor& factor : graph.layers[l].factors) layer.factor_axes.push_back(factor.name == "n" ? all : Axes{});
    plan.layers.push_back(layer);
  }
  for (TensorId t = 0; t < static_cast<TensorId>(graph.tensors.size()); ++t) {
    const Tensor& tensor = graph.tensors[t];
    if (tensor.kind != TensorKind::parameter && tensor.kind != TensorKind::state) continue;
    VariablePlan variable;
    variable.tensor = t;
    variable.global_shape = tensor.shape;
    variable.layout = Layout::replicated(static_cast<int>(tensor.shape.size()));
    for (NodeId n : graph.consumers(t)) variable.stages.push_back(plan.stage_of(graph.nodes[n]));
    std::sort(variable.stages.begin(), variable.stages.end());
    variable.stages.erase(std::unique(variable.stages.begin(), variable.stages.end()), variable.stages.end());
    variable.virtual_stages = variable.stages;
    plan.variables.push_back(variable);
  }
  return plan;
}

std::vector<Program> programs_of(const Graph& graph, Plan plan, const JobSpec& spec) {
  plan.numerics = numerics_of(graph, spec);
  return compile_all(graph, plan, CostModel());
}

std::vector<const Instruction*> collectives(const Program& program, Purpose purpose) {
  std::vector<const Instruction*> found;
  for (const Instruction& i : program.instructions) {
    if (i.opcode == Opcode::collective && i.purpose == purpose) found.push_back(&i);
  }
  return found;
}

std::vector<int> find_all(const Program& program, Opcode opcode, std::string_view name) {
  std::vector<int> found;
  for (int i = 0; i < static_cast<int>(program.instructions.size()); ++i) {
    const Instruction& code = program.instructions[i];
    if (code.opcode == opcode && (name.empty() || code.name == name)) found.push_back(i);
  }
  return found;
}

void move_instruction(Program& program, int from, int to) {
  const auto at = [&](int i) { return program.instructions.begin() + i; };
  if (from < to)
    std::rotate(at(from), at(from + 1), at(to + 1));
  else
    std::rotate(at(to), at(from), at(from + 1));
  const auto place = [&](int i) {
    if (i == from) return to;
    return i + (i >= to && i < from ? 1 : 0) - (i > from && i <= to ? 1 : 0);
  };
  for (int i = 0; i < static_cast<int>(program.instructions.size()); ++i) {
    std::vector<int>& waits = program.instructions[static_cast<size_t>(i)].waits;
    for (int& w : waits) w = place(w);
    std::erase_if(waits, [&](int w) { return w >= i; });
  }
}

}  // namespace trainctl
