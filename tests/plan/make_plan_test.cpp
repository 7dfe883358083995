// Tests of the choices of a plan: data parallel by default, a user's strategies exactly as given, and all other layers
// according to their neighbors.
#include <doctest/doctest.h>

#include <algorithm>

#include "engine/plan/axes/candidates.h"
#include "engine/plan/stages/kept_results.h"
#include "tests/plan/planned.h"

using namespace trainctl;

namespace {

std::string mlp(int64_t batch, const std::string& parallel, int ranks) {
  return dataset(batch, "[16, 49]") + R"(
network:
  - {type: flatten, name: flat}
  - {name: layer1, type: dense, units: 512}
  - {name: relu1, type: relu}
  - {name: layer2, type: dense, units: 512}
  - {name: relu2, type: relu}
  - {name: layer3, type: dense, units: 1}
loss: mae
parallel: )" +
         parallel + "\nlaunch: {ranks: " + std::to_string(ranks) + "}\n";
}

int count(const std::vector<std::string>& words, const std::string& word) {
  return static_cast<int>(std::count(words.begin(), words.end(), word));
}

}  // namespace

TEST_CASE("without strategies every layer is data parallel over all ranks, and nothing moves") {
  for (int ranks : {2, 3, 4, 6, 8, 12}) {
    for (const char* mode : {"data_parallel", "semi_auto_parallel"}) {
      const Planned p = planned(mlp(24, std::string("{mode: ") + mode + "}", ranks));
      CAPTURE(to_string(p.plan, p.graph));
      CHECK(broken_rule(p) == "");
      for (const LayerPlan& layer : p.plan.layers) CHECK(layer.choice == Choice::data_parallel);
      CHECK(p.plan.mesh.ways(p.in("layer1").dims[0]) == ranks);
      CHECK(p.moves(Phase::forward).empty());
      CHECK(p.moves(Phase::backward).empty());
    }
  }
}

TEST_CASE(
    "a weight's gradient is partial over the axes that cut the batch, and the loss over those that cut its input") {
  const Planned p = planned(mlp(24, "{mode: data_parallel}", 4));
  const TensorId gradient = p.graph.find_tensor("grad.layer2.weight").value();
  const Node& node = p.graph.nodes[p.graph.tensors[gradient].producer];
  CHECK(output_layout(p.graph, p.plan, node, 0) == Layout{{{}, {}}, {0, 1}});
  const Node& loss = p.graph.nodes[p.graph.tensors[p.graph.loss].producer];
  CHECK(output_layout(p.graph, p.plan, loss, 0).partial == Axes{0, 1});
}

TEST_CASE("BatchNorm [[4,1]] then MatMul [[1,1],[1,4]] takes one all_gather between them") {
  const Planned p = planned(dataset(32, "[64]") + R"(
network:
  - {name: bn1, type: batch_norm}
  - {name: matmul1, type: matmul, units: 128}
parallel:
  mode: semi_auto_parallel
  strategies:
    bn1: [[4, 1]]
    matmul1: [[1, 1], [1, 4]]
launch: {ranks: 4}
)");
  CAPTURE(to_string(p.plan, p.graph));
  CHECK(broken_rule(p) == "");
  CHECK(p.cuts("matmul1") == "[[1, 1], [1, 4]]");
  std::vector<std::string> moves = p.moves(Phase::forward);
  // The sums of the statistics of batch_norm are left out.
  std::erase_if(moves, [](const std::string& move) { return move.starts_with("all_reduce bn1."); });
  CHECK(moves == std::vector<std::string>{"all_gather bn1"});
}

TEST_CASE("elementwise layers follow what they read, and the next dense layer is cut to match") {
  const Planned p = planned(mlp(32, "{mode: semi_auto_parallel, strategies: {layer1: [[1, 1], [4, 1]]}}", 4));
  CAPTURE(to_string(p.plan, p.graph));
  CHECK(broken_rule(p) == "");
  CHECK(p.cuts("layer1") == "[[1, 1], [4, 1], [4]]");
  CHECK(p.cuts("relu1") == "[[1, 4]]");
  CHECK(p.layer("relu1").choice == Choice::propagated);
  CHECK(p.layer("relu1").reason == "follows layer1, no redistribution");
  CHECK(count(p.moves(Phase::forward), "all_gather layer1") == 0);
}

TEST_CASE("a cut contraction leaves a partial sum") {
  const Planned p = planned(mlp(32, "{mode: semi_auto_parallel, strategies: {layer3: [[1, 4], [1, 4]]}}", 4));
  CAPTURE(to_string(p.plan, p.graph));
  CHECK(broken_rule(p) == "");
  const TensorId sum = p.graph.find_tensor("layer3.matmul").value();
  const Node& node = p.graph.nodes[p.graph.tensors[sum].producer];
  CHECK(output_layout(p.graph, p.plan, node, 0) == Layout{{{}, {}}, {0, 1}});
}

TEST_CASE("the axes of strategies are chosen so that neighbours agree") {
  // Both layers cut the rows twice. The plan uses the same axis for both, so that nothing moves between them.
  const Planned p = planned(mlp(32,
                                "{mode: semi_auto_parallel, strategies: "
                                "{layer1: [[2, 1], [4, 1]], layer2: [[2, 4], [1, 4]], layer3: [[2, 1], [1, 1]]}}",
                                8));
  CAPTURE(to_string(p.plan, p.graph));
  CHECK(broken_rule(p) == "");
  const std::vector<std::string> moves = p.moves(Phase::forward);
  CHECK(count(moves, "all_gather layer1") == 0);
  CHECK(count(moves, "all_gather relu1") == 0);
  CHECK(p.out("relu1") == p.in("layer2"));
}

TEST_CASE("a batch that does not divide is cut as far as possible, and the plan says which sizes would divide") {
  const Planned p = planned(mlp(6, "{mode: semi_auto_parallel}", 4));
  CHECK(broken_rule(p) == "");
  CHECK(p.cuts("relu1") == "[[2, 1]]");
  CHECK(p.layer("layer1").reason == "data parallel: 6 rows cut 2 ways");
  CHECK(p.layer("layer1").cut_limit_reason == "4 does not divide 6");
  CHECK(p.plan.notes ==
        std::vector<std::string>{"the 6 rows of a micro-batch are cut 2 ways on 4 ranks; 4 or 8 rows could be cut 4 "
                                 "ways"});
  const Planned odd = planned(mlp(9, "{mode: semi_auto_parallel}", 12));
  CHECK(odd.cuts("relu1") == "[[3, 1]]");
}

TEST_CASE("rows that cannot be cut at all are reported as not cut, and the advice is one note for the job") {
  const Planned p = planned(mlp(48, "{mode: semi_auto_parallel}", 7));
  CHECK(broken_rule(p) == "");
  for (const LayerPlan& layer : p.plan.layers) {
    CHECK(layer.reason == "data parallel: 48 rows not cut");
    CHECK(layer.cut_limit_reason == "7 does not divide 48");
  }
  CHECK(p.plan.notes ==
        std::vector<std::string>{"the 48 rows of a micro-batch are not cut on 7 ranks; 42 or 49 rows could be cut 7 "
                                 "ways"});
}

TEST_CASE("one rank, or one rank per stage, cuts nothing") {
  const Planned alone = planned(mlp(32, "{mode: stand_alone}", 1));
  CHECK(broken_rule(alone) == "");
  CHECK(alone.plan.layers[1].choice == Choice::stand_alone);
  const Planned piped = planned(mlp(32, "{mode: semi_auto_parallel, stages: 2, micro_batches: 2}", 2));
  CHECK(broken_rule(piped) == "");
  CHECK(piped.cuts("layer2") == "[[1, 1], [1, 1], [1]]");
}

TEST_CASE("recompute of a repeated block keeps what leaves the block, and a note names it") {
  const std::string job = R"(
dataset: {type: random, shape: [8], batch: 4, label_shape: [1], label_dtype: f32}
modules:
  block: [{name: up, type: dense, units: 8}, {name: act, type: relu}, {name: sum, type: add, inputs: [act, input]}]
network:
  - {module: block, name: h, repeat: 3}
  - {name: top, type: dense, units: 1}
loss: mae
)";
  for (const std::string rules : {"['h.*']", "['*']", "['h.*.up', 'h.*.act', 'h.*.sum']"}) {
    const Planned p = planned(job + "parallel: {mode: stand_alone, recompute: " + rules + "}\n");
    CAPTURE(rules);
    for (const char* block : {"h.0", "h.1", "h.2"}) {
      CHECK(p.layer(std::string(block) + ".up").recompute);
      CHECK(p.layer(std::string(block) + ".act").recompute);
      CHECK_FALSE(p.layer(std::string(block) + ".sum").recompute);
    }
    REQUIRE(p.plan.notes.size() == 1);
    CHECK(p.plan.notes[0] ==
          "recompute keeps the outputs of blocks: the output of h.0.sum and of 2 more layers is stored");
  }
}

TEST_CASE("recompute excludes layers after an exclamation mark, and copies the parts of what it computes again") {
  const std::string job = R"(
dataset: {type: random, shape: [8], batch: 2, dtype: i32, classes: 4, label_shape: [8], label_dtype: i32}
modules:
  block:
    - {name: qkv, type: dense, units: 24}
    - {name: attn, type: attention, heads: 2, causal: true}
    - {name: sum, type: add, inputs: [attn, input]}
network:
  - {name: table, type: embedding, vocab: 4, units: 8}
  - {module: block, name: h, repeat: 2}
  - {name: head, type: dense, units: 4}
loss: softmax_cross_entropy
launch: {ranks: 2}
parallel: {mode: semi_auto_parallel, context: 2, context_method: ring, recompute: ['h.*', '!h.*.attn']}
)";
  const Planned p = planned(job);
  CHECK(p.layer("h.0.qkv").recompute);
  CHECK_FALSE(p.layer("h.0.attn").recompute);
  int parts = 0;
  for (const Node& node : p.graph.nodes) {
    if (node.phase != Phase::forward || p.graph.layers[static_cast<size_t>(node.layer)].name != "h.0.attn") continue;
    const bool splits = node.op == "split" || node.op == "reshape";
    for (const TensorId output : node.outputs) {
      CAPTURE(node.name);
      CHECK(is_recomputed(p.graph, p.plan, output) == splits);
      parts += node.op == "split";
    }
  }
  CHECK(parts == 3);
  CHECK_FALSE(planned(job.substr(0, job.find("'!h")) + "'!h.1.attn']}\n").layer("h.1.attn").recompute);
  CHECK(planned(job.substr(0, job.find("'!h")) + "'!h.1.attn']}\n").layer("h.0.attn").recompute);
}

TEST_CASE("the reference job: stages as configured, unnamed layers in the stage of their inputs") {
  const Planned p = planned(mlp(32,
                                "{mode: semi_auto_parallel, stages: 2, micro_batches: 4, stage_config: {layer1: 0, "
                                "relu1: 0, layer2: 1, relu2: 1, layer3: 1}, strategies: {layer2: [[2, 1], [2, 1]]}, "
                                "recompute: [relu1, relu2]}",
                                8));
  CAPTURE(to_string(p.plan, p.graph));
  CHECK(broken_rule(p) == "");
  CHECK(p.layer("flat").virtual_stage == 0);
  CHECK(p.layer("layer3").virtual_stage == 1);
  CHECK(p.plan.layers.back().virtual_stage == 1);
  CHECK(p.cuts("layer2") == "[[2, 1], [2, 1], [2]]");
  CHECK(p.layer("relu1").recompute);
  CHECK_FALSE(p.layer("layer1").recompute);
  CHECK(p.layer("layer2").reason.starts_with("strategy [[2, 1], [2, 1]] at job.yaml:"));
  CHECK(p.variable("layer2.weight").stages == std::vector<int>{1});
  CHECK(p.plan.mesh.ways(p.variable("layer2.weight").layout.dims[0]) == 2);
}

TEST_CASE("the loss is put in a stage by its name, alone or with layers") {
  const auto stage_of_loss = [](const std::string& stage_config, int stages) {
    const Planned p = planned(mlp(
        32, "{mode: semi_auto_parallel, stages: " + std::to_string(stages) + ", stage_config: " + stage_config + "}",
        stages));
    CHECK(broken_rule(p) == "");
    return p.layer("loss").virtual_stage;
  };
  CHECK(stage_of_loss("{layer1: 0, layer2: 1}", 2) == 1);
  CHECK(stage_of_loss("{'*': 0, loss: 1}", 2) == 1);
  CHECK(stage_of_loss("{layer1: 0, layer2: 1, loss: 2}", 3) == 2);
  CHECK(stage_of_loss("{layer1: 0, layer2: 1, relu2: 2, loss: 2}", 3) == 2);
}

TEST_CASE("a note names the layers that see only a part of the batch, and how many rows") {
  const auto notes = [](const std::string& parallel, const std::string& type = "batch_norm") {
    return planned(dataset(24, "[8]") + "network:\n  - {name: a, type: " + type +
                   "}\n  - {name: fc, type: dense, units: 8}\n  - {name: b, type: " + type +
                   "}\n  - {name: out, type: dense, units: 1}\nloss: mae\nlaunch: {ranks: 2}\nparallel: " + parallel +
                   "\n")
        .plan.notes;
  };
  CHECK(notes("{mode: data_parallel, micro_batches: 4}") ==
        std::vector<std::string>{"a, b compute over the rows of the batch: they use only the 6 rows of one "
                                 "micro-batch, not all 24, as in PyTorch, so the results depend on "
                                 "parallel.micro_batches"});
  CHECK(notes("{mode: data_parallel, micro_batches: 4}", "softmax, dim: 0").size() == 1);
  CHECK(notes("{mode: data_parallel}").empty());
  CHECK(notes("{mode: data_parallel, micro_batches: 4}", "layer_norm").empty());
  CHECK(notes("{mode: hybrid_parallel, micro_batches: 4, full_batch: true}").size() == 1);
  CHECK(notes("{mode: hybrid_parallel}") ==
        std::vector<std::string>{"a, b compute over the rows of the batch: they use only the 12 rows of one rank, not "
                                 "all 24, so the results depend on the number of ranks per stage"});
}

TEST_CASE("stages are balanced by work if no stage_config is given") {
  const Planned p = planned(mlp(32, "{mode: data_parallel, stages: 2, micro_batches: 2}", 4));
  CHECK(broken_rule(p) == "");
  // The weights are 784x512 against 512x512 and 512x1, so the first stage has only layer1.
  CHECK(p.layer("layer1").virtual_stage == 0);
  CHECK(p.layer("layer2").virtual_stage == 1);
  CHECK(p.layer("layer3").virtual_stage == 1);
}

TEST_CASE("in hybrid_parallel the cuts of a parameter multiply its size and nothing else is cut") {
  const Planned p = planned(dataset(8, "[32]", "[4]") + R"(
network:
  - {name: layer1, type: dense, units: 16}
  - {name: layer2, type: dense, units: 4}
loss: mse
parallel:
  mode: hybrid_parallel
  full_batch: true
  strategies: {layer1: [[1, 1], [2, 1], [2]]}
launch: {ranks: 4}
)");
  CHECK(p.variable("layer1.weight").global_shape == Shape{32, 32});
  CHECK(p.variable("layer1.weight").layout == Layout{{{0}, {}}, {}});
  CHECK(p.variable("layer1.bias").global_shape == Shape{32});
  CHECK(p.variable("layer2.weight").global_shape == Shape{4, 16});
  CHECK(p.cuts("layer1") == "[[1, 1], [1, 1], [1]]");
  CHECK(p.layer("layer1").choice == Choice::user);
  CHECK(to_string(p.layer("layer2").choice) == "by hand");
  const auto gradient = [&](const char* name) {
    const Node& node = p.graph.nodes[p.graph.tensors[p.graph.find_tensor(name).value()].producer];
    return output_layout(p.graph, p.plan, node, 0);
  };
  CHECK(gradient("grad.layer1.weight").partial == Axes{1});
  CHECK(gradient("grad.layer2.weight").partial == Axes{0, 1});
  const Node& loss = p.graph.nodes[p.graph.tensors[p.graph.loss].producer];
  CHECK(output_layout(p.graph, p.plan, loss, 0).partial == Axes{0, 1});
}

TEST_CASE("a parameter that layers of two stages share is kept by both, in the layout that the first needs") {
  const Planned p = planned(dataset(8, "[32]", "[32]") + R"(
network:
  - {name: layer1, type: dense, units: 32}
  - {name: layer2, type: dense, units: 32, share: layer1}
loss: mse
parallel:
  mode: semi_auto_parallel
  stages: 2
  micro_batches: 2
  stage_config: {layer1: 0, layer2: 1}
  strategies: {layer1: [[1, 1], [2, 1]]}
launch: {ranks: 4}
)");
  CHECK(broken_rule(p) == "");
  CHECK(p.variable("layer1.weight").stages == std::vector<int>{0, 1});
  CHECK(p.variable("layer1.weight").layout.dims[0] == Axes{0});
}

TEST_CASE("two plans of one job are the same") {
  const std::string job = mlp(24, "{mode: semi_auto_parallel, strategies: {layer2: [[3, 2], [2, 2]]}}", 12);
  const Planned a = planned(job);
  const Planned b = planned(job);
  CHECK(to_string(a.plan, a.graph) == to_string(b.plan, b.graph));
}

TEST_CASE("axes are spread over cuts in every order, and the largest cut is the largest that divides") {
  const Mesh mesh(12);
  CHECK(assignments(mesh, {6, 2}, 100).size() == 4);
  CHECK(assignments(mesh, {12, 1}, 100).size() == 6);
  CHECK(assignments(mesh, {2, 2, 3}, 1).front() == FactorAxes{{1}, {2}, {0}});
  CHECK(nearest_assignment(mesh, {2, 2}, {{2}, {}}).front() == FactorAxes{{2}, {1}});
  CHECK(largest_cut(mesh, {0, 1, 2}, 8) == Axes{1, 2});
  CHECK(largest_cut(mesh, {0, 1, 2}, 9) == Axes{0});
  CHECK(largest_cut(mesh, {0, 1, 2}, 5).empty());
}
