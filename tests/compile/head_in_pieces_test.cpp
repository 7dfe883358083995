// Tests of a last product and a loss that are computed for some rows at a time: the prediction and its gradient never
// exist whole.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>

#include "engine/base/text.h"
#include "engine/compile/compile.h"
#include "engine/compile/verify/verify_programs.h"
#include "engine/spec/parse.h"
#include "tests/compile/jobs.h"
#include "tests/compile/pass_proof.h"
#include "tests/compile/sketch.h"

using namespace trainctl;

namespace {

const int64_t kRows = 12 * 16, kClasses = 480;

/// A job with rows of 16 tokens and a head over many classes.
Job language_model(int pieces, const std::string& parallel, const std::string& more = "", int ranks = 1) {
  Job j = job(parse_job(
      fmt::format(R"(
dataset: {{type: random, shape: [16], dtype: i32, label_shape: [16], classes: 480, batch: 12}}
network:
  - {{name: embed, type: embedding, vocab: 480, units: 24}}
  - {{name: norm, type: layer_norm}}
  - {{name: head, type: dense, units: 480, bias: {}}}
loss: softmax_cross_entropy
{}
launch: {{ranks: {}}}
parallel: {{{}}}
)",
                  parallel.find("no_bias") == std::string::npos, more, ranks, parallel == "no_bias" ? "" : parallel),
      "job.yaml"));
  j.plan.head_pieces = pieces;
  return j;
}

/// All ranks' programs, proved one by one, as classes and after each pass.
std::vector<Program> programs(const Job& j) {
  CHECK(verify_classes(compile_classes(j.graph, j.plan, CostModel())).empty());
  CHECK_FALSE(first_pass_fault(j.graph, j.plan, CostModel(), passes()));
  return compile_all(j.graph, j.plan, CostModel());
}

int64_t largest_activation(const Program& p) {
  int64_t most = 0;
  for (const Instruction& i : p.instructions)
    for (const Operand& o : i.outputs)
      if (o.tensor == "head" || o.tensor == "grad.head") most = std::max(most, num_elements(o.shape));
  return most;
}

int head_in_pieces_count(const Program& p, const std::string& op) {
  return static_cast<int>(
      std::count_if(p.instructions.begin(), p.instructions.end(), [&](const Instruction& i) { return i.op == op; }));
}

}  // namespace

TEST_CASE("the head runs in as many pieces of rows as the plan says, and the prediction exists only in pieces") {
  const Program whole = programs(language_model(1, ""))[0];
  CHECK(largest_activation(whole) == kRows * kClasses);
  for (const int pieces : {2, 5, 12}) {
    CAPTURE(pieces);
    const Program p = programs(language_model(pieces, ""))[0];
    CHECK(largest_activation(p) == (12 + pieces - 1) / pieces * 16 * kClasses);
    CHECK(head_in_pieces_count(p, "softmax_cross_entropy_with_grad") == pieces);
    // The pieces save this much memory; dx and the activations of the earlier layers come on top. Pieces of unequal
    // sizes, such as 5 pieces of 12 rows, leave gaps of a piece or two.
    const int64_t of_12 = (12 + pieces - 1) / pieces + (12 % pieces == 0 ? 0 : 2);
    CHECK(p.memory.activations < whole.memory.activations * of_12 / 12 + 5 * kRows * 24 * 4);
  }
}

TEST_CASE("the number of pieces is at most the number of rows") {
  const Program p = programs(language_model(100, ""))[0];
  CHECK(head_in_pieces_count(p, "softmax_cross_entropy_with_grad") == 12);
}

TEST_CASE("a piece begins at a multiple of 64 bytes in every tensor: rows of 6 labels are cut by eights") {
  Job j = job("language", {});  // 48 rows
  j.plan.head_pieces = 5;
  std::vector<int64_t> rows;
  const Program p = programs(j)[0];
  for (const Instruction& i : p.instructions)
    if (i.op == "softmax_cross_entropy_with_grad") rows.push_back(i.inputs[0].shape[0]);
  CHECK(format_list(rows) == "[16, 8, 8, 8, 8]");
}

TEST_CASE("sums over rows are added up over the pieces: the loss, and the gradients of weight and bias") {
  const Program p = programs(language_model(3, ""))[0];
  int first = 0, later = 0;
  for (const Instruction& i : p.instructions) {
    if (i.op != "matmul_weight_grad") continue;
    REQUIRE(i.outputs.size() == 2);
    CHECK(i.outputs[0].accumulate == i.outputs[1].accumulate);
    ++(i.outputs[0].accumulate ? later : first);
  }
  CHECK(first == 1);
  CHECK(later == 2);
}

TEST_CASE("micro-batches, recompute, metrics, shards and stages leave the head in pieces") {
  const std::vector<std::pair<std::string, std::string>> jobs = {
      {"micro_batches: 2", ""},
      {"recompute: ['*']", ""},
      {"", "metrics: [accuracy, {type: top_k, k: 3}]"},
      {"", "optimizer: {type: sgd, learning_rate: 0.1}"},
      {"mode: data_parallel, optimizer_shard: {level: 2, min_kb: 0}, micro_batches: 3", ""},
      {"mode: data_parallel, optimizer_shard: {level: 3, min_kb: 0}", ""},
      {"mode: semi_auto_parallel, stages: 2, micro_batches: 2, schedule: gpipe, stage_config: {embed: 0, norm: 0, "
       "head: 1}",
       ""},
      {"mode: semi_auto_parallel, stages: 2, micro_batches: 4, stage_config: {embed: 0, norm: 0, head: 1}", ""}};
  for (const auto& [parallel, more] : jobs) {
    CAPTURE(parallel);
    CAPTURE(more);
    const int ranks = parallel.find("mode") == std::string::npos ? 1 : 2;
    const int64_t whole = largest_activation(programs(language_model(1, parallel, more, ranks)).back());
    const int64_t piece = largest_activation(programs(language_model(2, parallel, more, ranks)).back());
    CHECK(whole > 0);
    CHECK(piece == (whole / 480 / 16 + 1) / 2 * 480 * 16);
  }
}

TEST_CASE("a head cut by vocabulary exchanges the statistics of each piece's rows") {
  const Job j = language_model(4, "mode: semi_auto_parallel, strategies: {head: [[1, 1, 1], [4, 1]]}", "", 4);
  for (const Program& p : programs(j)) {
    const auto statistics = collectives(p, Purpose::statistics);
    REQUIRE(statistics.size() == 4);
    for (const Instruction* i : statistics) CHECK(i->inputs[0].shape == Shape{3, 16, 3});
    CHECK(largest_activation(p) == kRows * kClasses / 4 / 4);
  }
}

TEST_CASE("a prediction that something else reads whole stays whole") {
  for (const std::string more : {"print: [head]", "precision: bf16\ngradient_precision: bf16"}) {
    CAPTURE(more);
    CHECK(largest_activation(programs(language_model(4, "", more))[0]) == kRows * kClasses);
  }
}
