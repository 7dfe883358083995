// Tests of ops whose inner dim is cut: ranks exchange the statistics and not the rows, or only the elements that
// another rank has, and nothing is exchanged twice.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <set>

#include "engine/compile/compile.h"
#include "engine/compile/verify/verify_programs.h"
#include "engine/spec/parse.h"
#include "tests/compile/jobs.h"
#include "tests/compile/sketch.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;

namespace {

/// A model with rows of 16 tokens and a head over 48 classes. Its weight and the embedding's table are the same
/// parameter, cut by rows of the table.
std::string inner_sums_model(int ranks, const std::string& parallel) {
  return fmt::format(R"(
dataset: {{type: random, shape: [16], dtype: i32, label_shape: [16], classes: 48, batch: 12}}
network:
  - {{name: embed, type: embedding, vocab: 48, units: 24}}
  - {{name: norm, type: layer_norm}}
  - {{name: head, type: dense, units: 48, share: embed, bias: false}}
loss: softmax_cross_entropy
launch: {{ranks: {}}}
parallel: {{mode: semi_auto_parallel, {}}}
)",
                     ranks, parallel);
}

Job text_job(const std::string& text) { return job(parse_job(text, "job.yaml")); }

/// All ranks' programs, proved one by one and as classes.
std::vector<Program> inner_sums_programs(const Job& j) {
  CHECK(verify_classes(compile_classes(j.graph, j.plan, CostModel())).empty());
  return compile_all(j.graph, j.plan, CostModel());
}

std::set<std::string> kernels(const Program& p) {
  std::set<std::string> names;
  for (const Instruction& i : p.instructions)
    if (i.opcode == Opcode::kernel) names.insert(i.op);
  return names;
}

}  // namespace

TEST_CASE("a head sharded by vocabulary exchanges three numbers per row, and no logits") {
  for (const int ranks : {2, 3, 4, 6}) {
    CAPTURE(ranks);
    const int64_t rows = 12 * 16, width = 24, classes = 48;
    const Job j = text_job(inner_sums_model(
        ranks, fmt::format("strategies: {{embed: [[1, 1], [{0}, 1]], head: [[1, 1, 1], [{0}, 1]]}}", ranks)));
    REQUIRE(layer_cuts(j.graph, j.plan, j.graph.find_layer("loss").value())[0] == Ints{1, 1, ranks});
    CHECK(j.plan.variable(j.graph.find_tensor("embed.weight").value())
              .layout.local_shape(j.plan.mesh, {classes, width}) == Shape{classes / ranks, width});
    for (const Program& p : inner_sums_programs(j)) {
      const auto statistics = collectives(p, Purpose::statistics);
      REQUIRE(statistics.size() == 1);  // the loss and its gradient share it
      CHECK(statistics[0]->collective == Collective::all_gather);
      CHECK(p.groups[statistics[0]->group].size() == ranks);
      CHECK(statistics[0]->inputs[0].bytes() == rows * 3 * 4);
      // The table and the head exchange sums of the size of the width; nothing has the size of the logits.
      for (const Instruction* i : collectives(p, Purpose::redistribute)) CHECK(i->bytes() <= rows * width * 4);
      CHECK(collectives(p, Purpose::weights).empty());
      const std::set<std::string> run = kernels(p);
      CHECK(run.contains("softmax_cross_entropy_stats"));
      CHECK(run.contains("softmax_cross_entropy_grad_apply"));
      CHECK_FALSE(run.contains("softmax_cross_entropy_with_grad"));
      for (const Instruction& i : p.instructions)
        for (const Operand& o : i.outputs)
          CHECK(num_elements(o.shape) <= std::max(rows * classes / ranks, rows * width));
    }
  }
}

TEST_CASE("if the dim is whole, the fused kernels run and nothing is exchanged") {
  for (const Program& p :
       inner_sums_programs(text_job(inner_sums_model(4, "strategies: {head: [[4, 1, 1], [1, 1]]}")))) {
    CHECK(collectives(p, Purpose::statistics).empty());
    const std::set<std::string> run = kernels(p);
    CHECK(run.contains("softmax_cross_entropy_with_grad"));
    CHECK(run.contains("layer_norm"));
    for (const std::string& name : run) CHECK_FALSE((name.ends_with("_stats") || name.ends_with("_apply")));
  }
}

TEST_CASE("a recomputed layer uses the statistics of its forward pass: two numbers per row, once each way") {
  for (const std::string recompute : {"", ", recompute: ['*']"}) {
    const Job j = text_job(inner_sums_model(
        4, "micro_batches: 2, strategies: {norm: [[2, 1, 2], [2], [2]], loss: [[2, 1, 1]]}" + recompute));
    for (const Program& p : inner_sums_programs(j)) {
      const auto statistics = collectives(p, Purpose::statistics);
      REQUIRE(statistics.size() == 4);  // forward and backward, for each micro-batch
      for (const Instruction* i : statistics) {
        CHECK_FALSE(i->recompute);
        CHECK(i->inputs[0].bytes() == 6 * 16 / 2 * 2 * 4);
        CHECK(i->bytes() == 2 * i->inputs[0].bytes());
      }
      const auto again = [](const Instruction& i) { return i.recompute && i.op == "layer_norm_apply"; };
      CHECK(std::count_if(p.instructions.begin(), p.instructions.end(), again) == (recompute.empty() ? 0 : 2));
    }
  }
}

TEST_CASE("of the ranks that share a loss over cut classes, one counts it") {
  const Job j = text_job(inner_sums_model(4, "strategies: {head: [[2, 1, 1], [2, 1]], loss: [[2, 1, 2], [2, 1]]}"));
  int counted = 0;
  for (const Program& p : inner_sums_programs(j)) {
    counted += kernels(p).contains("softmax_cross_entropy_apply");
    CHECK(collectives(p, Purpose::statistics).size() == 1);
  }
  CHECK(counted == 2);  // one for each half of the batch
}

TEST_CASE("a softmax over the rows of the batch may be cut by them") {
  const Job j = text_job(R"(
dataset: {type: random, shape: [8], label_dtype: f32, label_shape: [8], batch: 12}
network: [{name: a, type: dense, units: 8}, {name: s, type: softmax, dim: 0}]
loss: mse
launch: {ranks: 3}
parallel: {mode: data_parallel}
)");
  for (const Program& p : inner_sums_programs(j)) {
    const auto statistics = collectives(p, Purpose::statistics);
    REQUIRE(statistics.size() == 2);
    CHECK(statistics[0]->inputs[0].bytes() == 8 * 2 * 4);
    CHECK(statistics[1]->inputs[0].bytes() == 8 * 4);
    CHECK(collectives(p, Purpose::redistribute).empty());
  }
}

namespace {

/// A layer with q, k and v in one product that is cut `ways` ways, as are q, k and v themselves.
Job packed(int ways, const std::string& sizes, int units) {
  return text_job(fmt::format(R"(
dataset: {{type: random, shape: [8, 24], label_dtype: f32, label_shape: [8, 24], batch: 12}}
network:
  - {{name: qkv, type: dense, units: {1}}}
  - {{name: cut, type: split, sizes: {2}}}
  - {{name: turned, type: concat, inputs: [cut.2, cut.0, cut.1]}}
  - {{name: out, type: dense, units: 24}}
loss: mse
launch: {{ranks: {0}}}
parallel:
  mode: semi_auto_parallel
  strategies: {{qkv: [[1, 1, 1], [{0}, 1]], cut: [[1, 1, {0}]], turned: [[1, 1, {0}], [1, 1, {0}], [1, 1, {0}]], out: [[1, 1, {0}], [1, {0}]]}}
)",
                              ways, units, sizes));
}

}  // namespace

TEST_CASE("a split along a dim that is cut: ranks exchange what another holds, a third of what a gather would move") {
  for (const int ways : {2, 3, 4, 6, 12}) {
    CAPTURE(ways);
    for (const Program& p : inner_sums_programs(packed(ways, "[12, 12, 12]", 36))) {
      int exchanges = 0;
      for (const Instruction* i : collectives(p, Purpose::redistribute)) {
        if (i->collective == Collective::all_reduce) continue;  // of the cut contraction
        CHECK(i->collective == Collective::all_to_all);
        // Each rank receives at most what one of the three parts has on one rank. With 3 ways each rank has a whole
        // part.
        CHECK(i->bytes() <= 12 * 8 * 36 * 4 / 3);
        CHECK_FALSE(i->recompute);
        ++exchanges;
      }
      CHECK(exchanges == 4);  // split and concat, forward and backward
    }
  }
}

TEST_CASE("parts of unequal sizes are exchanged in blocks of the most that one rank sends to another") {
  for (const Program& p : inner_sums_programs(packed(4, "[24, 8, 16]", 48)))
    for (const Instruction* i : collectives(p, Purpose::redistribute)) {
      if (i->collective != Collective::all_to_all) continue;
      CHECK(i->inputs[0].shape.size() == 4);
      CHECK(i->inputs[0].shape[0] == 4);
      CHECK(i->inputs[0].shape[3] <= 12);  // of the 12 that a rank has
    }
}
