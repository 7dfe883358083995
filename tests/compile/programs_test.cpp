// Tests of the contents of a program: collectives, transfers, buckets, fusion.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/compile/sketch.h"

using namespace trainctl;

namespace {

int64_t count_parameters(const Graph& graph) {
  int64_t elements = 0;
  for (const Tensor& t : graph.tensors) elements += t.kind == TensorKind::parameter ? num_elements(t.shape) : 0;
  return elements;
}

const Graph kProgramsMlp = mlp_graph(24, 16, {8, 12, 1});

}  // namespace

TEST_CASE("data parallel: one gradient all_reduce per step of 4 bytes per parameter, without padding") {
  for (int ranks : {2, 3, 4, 6, 8, 12}) {
    for (int micro_batches : {1, 2}) {
      const Graph graph = mlp_graph(24, 16, {8, 12, 1});
      for (const Program& p : programs_of(graph, data_parallel_plan(graph, ranks, 1, micro_batches))) {
        const auto reduces = collectives(p, Purpose::gradient);
        REQUIRE(reduces.size() == 1);
        CHECK(reduces[0]->collective == Collective::all_reduce);
        CHECK(reduces[0]->bytes() == 4 * count_parameters(graph));
        CHECK(reduces[0]->name == "all_reduce grad.bucket0");
        CHECK(p.groups[reduces[0]->group].size() == ranks);
        CHECK(collectives(p, Purpose::redistribute).empty());
        CHECK(collectives(p, Purpose::loss).size() == 1);
      }
    }
  }
}

TEST_CASE("one rank: no communication at all") {
  const Program p = programs_of(kProgramsMlp, data_parallel_plan(kProgramsMlp, 1, 1, 3))[0];
  CHECK(find_all(p, Opcode::collective).empty());
  CHECK(find_all(p, Opcode::send).empty());
  CHECK(find_all(p, Opcode::recv).empty());
}

TEST_CASE("a 512x128 weight is reduced in exactly 262,144 bytes") {
  GraphSketch s;
  const TensorId x = s.tensor("data", {32, 512}, TensorKind::input);
  s.layer("mm", {{"n", 32}, {"k", 512}, {"o", 128}});
  const TensorId w = s.tensor("mm.weight", {512, 128}, TensorKind::parameter);
  const TensorId y = s.node("matmul", "nk,ko->no", {x, w}, "mm", Phase::forward);
  s.graph.loss = s.node("mae", "no,no->()", {y, y}, "loss", Phase::forward, {{"scale", 1.0}});
  const TensorId dy = s.node("mae_grad", "no,no->no", {y, y}, "grad.mm", Phase::backward, {{"scale", 1.0}});
  const TensorId dw =
      s.node("matmul_weight_grad", "nk,no->ko", {x, dy}, "grad.mm.weight", Phase::backward, {{"kn", true}});
  s.graph.updates.push_back({w, {dw}});
  for (const Program& p : programs_of(s.graph, data_parallel_plan(s.graph, 4))) {
    REQUIRE(collectives(p, Purpose::gradient).size() == 1);
    CHECK(collectives(p, Purpose::gradient)[0]->bytes() == 262144);
  }
}

TEST_CASE("matmul, add_bias and relu become one matmul, and the last layer keeps its bias only") {
  const Program p = programs_of(kProgramsMlp, data_parallel_plan(kProgramsMlp, 2))[0];
  CHECK(find_all(p, Opcode::kernel, "layer1.matmul").empty());
  CHECK(find_all(p, Opcode::kernel, "layer1").empty());
  REQUIRE(find_all(p, Opcode::kernel, "relu1").size() == 1);
  const Instruction& fused = p.instructions[find_all(p, Opcode::kernel, "relu1")[0]];
  CHECK(fused.op == "matmul");
  CHECK(fused.inputs.size() == 3);
  CHECK(fused.attrs.flag("bias"));
  CHECK(fused.attrs.text("activation") == "relu");
  const Instruction& last = p.instructions[find_all(p, Opcode::kernel, "layer3")[0]];
  CHECK(last.op == "matmul");
  CHECK_FALSE(last.attrs.has("activation"));
}

TEST_CASE("values that the backward pass or a print needs are not fused away") {
  Graph graph = mlp_graph(24, 16, {8, 1});
  graph.prints = {graph.find_tensor("layer1").value()};
  const Program p = programs_of(graph, data_parallel_plan(graph, 2))[0];
  CHECK(find_all(p, Opcode::print, "print layer1").size() == 1);
  CHECK(p.instructions[find_all(p, Opcode::kernel, "layer1")[0]].op == "matmul");
  CHECK(p.instructions[find_all(p, Opcode::kernel, "relu1")[0]].op == "relu");
}

TEST_CASE("gradients add up in their bucket: the first contribution of a step overwrites, later ones add") {
  const Program p = programs_of(kProgramsMlp, data_parallel_plan(kProgramsMlp, 2, 1, 3))[0];
  const std::vector<int> found = find_all(p, Opcode::kernel, "layer1.weight.backward");
  REQUIRE(found.size() == 3);
  const Bucket& bucket = p.buckets[0];
  for (size_t m = 0; m < found.size(); ++m) {
    const Operand& out = p.instructions[found[m]].outputs[0];
    CHECK(out.accumulate == (m > 0));
    CHECK(out.offset >= bucket.gradients_offset);
    CHECK(out.offset + out.bytes() <= bucket.gradients_offset + bucket.elements * 4);
  }
  CHECK(find_all(p, Opcode::kernel, "update bucket0").size() == 1);
}

TEST_CASE("data is loaded once per micro-batch, each rank its rows") {
  const std::vector<Program> programs = programs_of(kProgramsMlp, data_parallel_plan(kProgramsMlp, 3, 1, 2));
  for (const Program& p : programs) {
    const std::vector<int> loads = find_all(p, Opcode::load, "load data");
    REQUIRE(loads.size() == 2);
    const Operand& out = p.instructions[loads[1]].outputs[0];
    CHECK(out.shape == Shape{8, 16});
    CHECK(out.global_offset == Shape{8 * p.rank, 0});
    CHECK(p.instructions[loads[1]].micro_batch == 1);
  }
}

TEST_CASE("stages: activations go forward, their gradients back, each rank to the same rank of the other stage") {
  const std::vector<Program> programs = programs_of(kProgramsMlp, data_parallel_plan(kProgramsMlp, 4, 2, 4));
  for (const Program& p : programs) {
    const std::vector<int> sends = find_all(p, Opcode::send), recvs = find_all(p, Opcode::recv);
    CHECK(sends.size() == 4);
    CHECK(recvs.size() == 4);
    for (int s : sends) CHECK(p.instructions[s].peer == (p.rank + 2) % 4);
    CHECK(collectives(p, Purpose::gradient).size() == 1);
  }
  // The last wait releases the buffers of every channel.
  CHECK(programs[0].instructions.back().opcode != Opcode::send);
  CHECK(find_all(programs[1], Opcode::wait).size() <= 1);
}

TEST_CASE("a stage loads the label itself instead of receiving it") {
  const std::vector<Program> programs = programs_of(kProgramsMlp, data_parallel_plan(kProgramsMlp, 2, 2, 1));
  CHECK(find_all(programs[0], Opcode::load, "load label").empty());
  CHECK(find_all(programs[1], Opcode::load, "load label").size() == 1);
  CHECK(find_all(programs[1], Opcode::load, "load data").empty());
}

TEST_CASE(
    "optimizer sharding: level 1 scatters once a step and gathers weights, level 2 each micro-batch, level 3 gathers "
    "before use") {
  for (int level = 0; level <= 3; ++level) {
    Plan plan = data_parallel_plan(kProgramsMlp, 4, 1, 2);
    plan.optimizer_shard_level = level;
    const Program p = programs_of(kProgramsMlp, plan)[1];
    const auto gradient = collectives(p, Purpose::gradient), weights = collectives(p, Purpose::weights);
    CAPTURE(level);
    if (level < 2) {
      REQUIRE(gradient.size() == 1);
      CHECK(gradient[0]->collective == (level == 0 ? Collective::all_reduce : Collective::reduce_scatter));
      CHECK(weights.size() == static_cast<size_t>(level));
    } else {
      for (const Instruction* i : gradient) CHECK(i->collective == Collective::reduce_scatter);
      CHECK(gradient.size() == (level == 2 ? 2 : 6));  // one bucket; one bucket per layer
      // At level 2 there is one all_gather. At level 3 each micro-batch gathers 3 layers for the forward pass and 1 for
      // the backward pass. That pass reads the weights of 2 layers, but those of the last layer are still in memory.
      CHECK(weights.size() == (level == 2 ? 1 : 8));
    }
    for (const Bucket& b : p.buckets) {
      CHECK(b.level == level);
      CHECK(b.shards == (level == 0 ? 1 : 4));
      CHECK((level == 0 || b.elements % (4 * 16) == 0));
    }
  }
}

TEST_CASE("parameters under the minimum are not sharded") {
  Plan plan = data_parallel_plan(kProgramsMlp, 4);
  plan.optimizer_shard_level = 2;
  plan.optimizer_shard_min_bytes = 8 * 16 * 4;
  const Program p = programs_of(kProgramsMlp, plan)[0];
  REQUIRE(p.buckets.size() == 2);
  int64_t sharded = 0;
  for (const Bucket& b : p.buckets) sharded += b.level == 2 ? b.elements : 0;
  CHECK(sharded == 8 * 16);
}

TEST_CASE("recompute: forward nodes run again in the backward task, and are marked") {
  Plan plan = data_parallel_plan(kProgramsMlp, 2, 1, 2);
  plan.layers[kProgramsMlp.find_layer("relu1").value()].recompute = true;
  const Program p = programs_of(kProgramsMlp, plan)[0];
  const std::vector<int> runs = find_all(p, Opcode::kernel, "relu1");
  REQUIRE(runs.size() == 4);
  CHECK(std::count_if(runs.begin(), runs.end(), [&](int i) { return p.instructions[i].recompute; }) == 2);
  for (int i : runs) CHECK(p.instructions[i].phase == Phase::forward);
}

TEST_CASE("clipping: every gradient element is counted once over all ranks, and one number is summed") {
  JobSpec spec;
  spec.optimizer.clip_norm = 1.0;
  for (int level = 0; level <= 3; ++level) {
    for (int stages : {1, 2}) {
      Plan plan = data_parallel_plan(kProgramsMlp, 6, stages, 2);
      plan.optimizer_shard_level = level;
      int64_t counted = 0;
      for (const Program& p : programs_of(kProgramsMlp, plan, spec)) {
        REQUIRE(collectives(p, Purpose::clip).size() == 1);
        CHECK(collectives(p, Purpose::clip)[0]->bytes() == 4);
        for (const Instruction& i : p.instructions)
          counted += i.op == "sum_squares" ? num_elements(i.inputs[0].shape) : 0;
        for (int u : find_all(p, Opcode::kernel)) {
          if (p.instructions[u].op == "sgd_update") CHECK(p.instructions[u].inputs.size() == 2);
        }
      }
      CHECK(counted == count_parameters(kProgramsMlp));
    }
  }
}

TEST_CASE("zero_bubble: the gradient that another stage waits for is sent before weight gradients are computed") {
  Plan plan = data_parallel_plan(kProgramsMlp, 2, 2, 4);
  plan.schedule = Schedule::zero_bubble;
  for (const Program& p : programs_of(kProgramsMlp, plan)) {
    for (int m = 0; m < 4; ++m) {
      int sent = -1, first = -1;
      for (int i = 0; i < static_cast<int>(p.instructions.size()); ++i) {
        const Instruction& code = p.instructions[i];
        if (code.micro_batch != m) continue;
        if (code.opcode == Opcode::send && code.phase == Phase::backward) sent = i;
        if (code.weight_gradients && first < 0) first = i;
        for (const Operand& out : code.outputs)
          if (out.tensor.ends_with("weight")) CHECK(code.weight_gradients);
      }
      CHECK(first >= 0);
      CHECK((sent >= 0) == (p.stage == 1));
      CHECK(sent < first);
    }
  }
}

TEST_CASE("the loss adds up over micro-batches in one buffer, and every rank gets the sum") {
  const std::vector<Program> programs = programs_of(kProgramsMlp, data_parallel_plan(kProgramsMlp, 4, 2, 3));
  for (const Program& p : programs) {
    const std::vector<int> losses = find_all(p, Opcode::kernel, "loss");
    CHECK(losses.size() == (p.stage == 1 ? 3 : 0));
    for (size_t m = 0; m < losses.size(); ++m) {
      CHECK(p.instructions[losses[m]].outputs[0].offset == p.loss_offset);
      CHECK(p.instructions[losses[m]].outputs[0].accumulate == (m > 0));
    }
    CHECK(find_all(p, Opcode::kernel, "zero loss").size() == (p.stage == 1 ? 0 : 1));
    REQUIRE(collectives(p, Purpose::loss).size() == 1);
    CHECK(collectives(p, Purpose::loss)[0]->bytes() == 4);
  }
}

TEST_CASE("without a loss a program runs forward only") {
  Graph graph = mlp_graph(24, 16, {8, 1});
  std::erase_if(graph.nodes, [](const Node& n) { return n.phase == Phase::backward || n.op == "mae"; });
  graph.loss = -1;
  graph.updates.clear();
  const Program p = programs_of(graph, data_parallel_plan(graph, 2, 1, 2))[0];
  CHECK(p.loss_offset == -1);
  CHECK(p.buckets[0].gradients_offset == -1);
  CHECK(p.memory.gradients == 0);
  CHECK(p.memory.optimizer == 0);
  CHECK(find_all(p, Opcode::collective).empty());
}

TEST_CASE("a rank compiles the same program alone as together with the others") {
  const Plan plan = data_parallel_plan(kProgramsMlp, 4, 2, 2);
  const std::vector<Program> once = programs_of(kProgramsMlp, plan), again = programs_of(kProgramsMlp, plan);
  for (size_t r = 0; r < once.size(); ++r) CHECK(to_string(once[r]) == to_string(again[r]));
}

TEST_CASE("a program prints as a table: one line per instruction, with buffers and waits") {
  const Program p = programs_of(kProgramsMlp, data_parallel_plan(kProgramsMlp, 4, 2, 2))[0];
  const std::string text = to_string(p);
  CHECK(std::count(text.begin(), text.end(), '\n') == 2 + static_cast<int>(p.buckets.size() + p.instructions.size()));
  for (const char* words : {"rank 0: stage 0, rank 0 in it; arena ", "summed over {0,1}", "send to 2", "recv from 2",
                            "all_reduce {0,1}", "load data", "+grad.layer1.weight [8, 16] @", "waits "}) {
    CAPTURE(words);
    CHECK(text.find(words) != std::string::npos);
  }
}

TEST_CASE("a bucket has at most 32 MiB or one parameter, and the last parameters of the graph are reduced first") {
  const Graph graph = mlp_graph(4, 1024, {2048, 2048, 4096, 512, 1});
  const Program p = programs_of(graph, data_parallel_plan(graph, 2))[0];
  CHECK(p.buckets.size() == 3);
  for (size_t b = 0; b < p.buckets.size(); ++b) {
    const auto members = std::count_if(p.variables.begin(), p.variables.end(),
                                       [&](const Variable& v) { return v.bucket == static_cast<int>(b); });
    CHECK((p.buckets[b].elements * 4 <= 32 << 20 || members == 1));
  }
  const auto reduces = collectives(p, Purpose::gradient);
  REQUIRE(reduces.size() == 3);
  CHECK(reduces[0]->name == "all_reduce grad.bucket0");
  for (const Variable& v : p.variables) {
    if (v.name == "layer5.weight") CHECK(v.bucket == 0);
    if (v.name == "layer1.weight") CHECK(v.bucket == 2);
    if (num_elements(v.shape) % 16 == 0) CHECK(v.arena_offset % 64 == 0);
  }
}

TEST_CASE("a loss that is also printed has its own buffer, is whole when printed, and is added up from there") {
  Graph graph = mlp_graph(24, 16, {8, 1});
  graph.prints = {graph.loss};
  for (const Program& p : programs_of(graph, data_parallel_plan(graph, 2, 1, 2))) {
    CHECK(find_all(p, Opcode::print, "print loss").size() == 2);
    CHECK(find_all(p, Opcode::kernel, "copy loss").size() == 1);
    CHECK(find_all(p, Opcode::kernel, "accumulate loss").size() == 1);
    CHECK(collectives(p, Purpose::redistribute).size() == 2);
  }
}

TEST_CASE("if several ranks compute the same loss, one of them counts it") {
  Graph graph = mlp_graph(24, 16, {8, 1});
  Plan plan = data_parallel_plan(graph, 4);
  // The last layers replicate over axis 1 of 2x2.
  for (const char* name : {"layer2", "loss"}) {
    LayerPlan& layer = plan.layers[graph.find_layer(name).value()];
    layer.factor_axes[0] = {0};
  }
  int counted = 0;
  for (const Program& p : programs_of(graph, plan)) {
    counted += static_cast<int>(find_all(p, Opcode::kernel, "loss").size());
    CHECK(find_all(p, Opcode::kernel, "loss").size() + find_all(p, Opcode::kernel, "zero loss").size() == 1);
  }
  CHECK(counted == 2);
}

TEST_CASE("gradients of two uses that are partial over different axes are reduced as soon as they are computed") {
  Graph graph = mlp_graph(24, 8, {8, 8, 1});
  // layer2 uses layer1's weight too.
  Update& first = graph.updates.back().parameter == graph.find_tensor("layer1.bias").value()
                      ? graph.updates[graph.updates.size() - 2]
                      : graph.updates.back();
  REQUIRE(graph.tensors[first.parameter].name == "layer1.weight");
  const TensorId shared = first.parameter, second = graph.find_tensor("layer2.weight").value();
  for (Node& node : graph.nodes) std::replace(node.inputs.begin(), node.inputs.end(), second, shared);
  for (const Update& u : graph.updates) {
    if (u.parameter == second) first.gradients.push_back(u.gradients[0]);
  }
  std::erase_if(graph.updates, [&](const Update& u) { return u.parameter == second; });
  Plan plan = data_parallel_plan(graph, 4);
  std::erase_if(plan.variables, [&](const VariablePlan& v) { return v.tensor == second; });
  const Program same = programs_of(graph, plan)[0];
  CHECK(collectives(same, Purpose::redistribute).empty());

  plan.layers[graph.find_layer("layer2").value()].factor_axes[0] = {0};
  const Program p = programs_of(graph, plan)[0];
  int reduced = 0;
  for (const Instruction* i : collectives(p, Purpose::redistribute))
    reduced += i->name.find("weight") != std::string::npos;
  CHECK(reduced == 2);
  // The bias of layer2 must still be summed over one axis, the shared weight over none, and all other gradients over
  // both.
  CHECK(p.buckets.size() == 3);
  CHECK(std::count_if(p.buckets.begin(), p.buckets.end(), [](const Bucket& x) { return x.reduce_group < 0; }) == 1);
}
