// Tests of the predicted steps of ranks that share the rows of sequences.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/estimate/simulate.h"
#include "engine/machine/machine.h"
#include "engine/ops/attention/key_exchange.h"
#include "engine/ops/op_def.h"
#include "engine/planning/compile_job.h"
#include "engine/planning/memory_limit.h"
#include "engine/planning/plan_job.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"

using namespace trainctl;

namespace {

/// A job with two blocks of attention. `attention` has more fields of the layer, `last` more layers of a block.
PlannedJob shared_rows(int context, const std::string& method, const std::string& attention = "",
                       const std::string& last = "", int64_t length = 32768) {
  return plan_job(parse_job(fmt::format(R"(
precision: bf16
dataset: {{type: random, shape: [{0}], dtype: i32, classes: 512, label_shape: [{0}], label_dtype: i32, batch: 1, samples: 8}}
modules:
  block:
    - {{name: qkv, type: dense, units: 1536, bias: false}}
    - {{name: attn, type: attention, heads: 8, kv_heads: 2, causal: true{1}}}
    - {{name: proj, type: dense, units: 1024, bias: false}}
    - {{name: sum, type: add, inputs: [proj, input]}}{2}
network:
  - {{name: table, type: embedding, vocab: 512, units: 1024}}
  - {{module: block, name: h, repeat: 2}}
  - {{name: head, type: dense, units: 512, bias: false}}
loss: softmax_cross_entropy
optimizer: {{type: adamw, learning_rate: 0.0003}}
parallel: {{mode: semi_auto_parallel, context: {3}, context_method: {4}}}
launch: {{ranks: {3}, device: cuda, machine: h100x8}}
)",
                                        length, attention, last, context, method),
                            "job.yaml"));
}

/// The seconds of the rank whose attention kernels take the longest.
double attention_seconds(const PlannedJob& job) {
  const RankClasses classes = compile_classes(job);
  const Simulation step = simulate(classes, job.cost.machine());
  double most = 0;
  for (size_t c = 0; c < classes.programs.size(); ++c) {
    double seconds = 0;
    for (size_t i = 0; i < classes.programs[c].instructions.size(); ++i) {
      const std::string& op = classes.programs[c].instructions[i].op;
      if (op == "attention" || op == "attention_grad") seconds += (step.spans[c][i].end - step.spans[c][i].begin).value;
    }
    most = std::max(most, seconds);
  }
  return most;
}

double step_seconds(const PlannedJob& job, const RankClasses& classes) {
  return simulate(classes, job.cost.machine()).step.value;
}

}  // namespace

TEST_CASE("causal attention over consecutive rows costs as much as that of the last rank") {
  const OpDef& attention = get_op("attention");
  const auto flops = [&](int64_t rows, const Attrs& more) {
    Attrs attrs{{"head_dim", int64_t{64}}, {"group", int64_t{1}}, {"causal", true}, {"scale", 0.125}};
    for (const auto& [name, value] : more) attrs.set(name, value);
    const TensorInfo q{{1, rows, 512}, DType::bf16}, kv{{1, 8192, 512}, DType::bf16};
    const std::vector<TensorInfo> in = {q, kv, kv}, out = attention.infer(in, attrs);
    return attention.kernel.cost(in, out, attrs).flops;
  };
  const double mean = flops(8192, {}) / 8;
  CHECK(flops(1024, {}) == doctest::Approx(1.875 * mean));
  CHECK(flops(1024, {{kExchangesKeys, true}}) == doctest::Approx(mean));
  CHECK(flops(1024, {{kExchangesKeys, true}, {kConsecutiveRows, true}}) == doctest::Approx(1.875 * mean));
}

TEST_CASE("a plan whose rows cannot be balanced is charged for the rank with the last rows") {
  // The masks of dropout depend on positions, so the rows keep their order.
  const std::string dropout = "\n    - {name: drop, type: dropout, p: 0.1}";
  for (const char* method : {"gather", "ring"}) {
    CAPTURE(method);
    const double balanced = attention_seconds(shared_rows(8, method)),
                 in_order = attention_seconds(shared_rows(8, method, "", dropout));
    CHECK(in_order > 1.7 * balanced);
    CHECK(in_order < 2.0 * balanced);
  }
}

TEST_CASE("a note says why the rows of causal attention cannot be balanced, unless nothing is lost") {
  const auto note = [](const PlannedJob& job) {
    for (const std::string& each : job.plan.notes)
      if (each.starts_with("attention over")) return each;
    return std::string();
  };
  const auto contains = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  const char* const loss = "the last rank computes almost twice the mean of causal attention";
  CHECK(contains(note(shared_rows(4, "ring", "", "", 32764)), "32,764 rows are not a multiple of 8"));
  const std::string dropout = "\n    - {name: drop, type: dropout, p: 0.1}";
  CHECK(contains(note(shared_rows(4, "gather", "", dropout)), "other layers depend on the order"));
  CHECK(contains(note(shared_rows(4, "ring")), "rank i of 4 has the pieces"));
  CHECK_FALSE(contains(note(shared_rows(4, "ring")), loss));
  CHECK_FALSE(contains(note(shared_rows(2, "ulysses", "", "", 32762)), loss));
  CHECK_FALSE(contains(note(shared_rows(4, "gather", ", window: 64", "", 32764)), loss));
}

TEST_CASE("no kernel of a ring runs beside a message that is awaited") {
  PlannedJob job = shared_rows(4, "ring");
  const RankClasses classes = compile_classes(job);
  Machine machine = job.cost.machine();
  const double before = simulate(classes, machine).step.value;
  machine.wait_cost = 1.3;
  CHECK(simulate(classes, machine).step.value <= 1.01 * before);
}

TEST_CASE(
    "a ring with a window takes as long if ranks that see the same blocks share a class, on one host and on four") {
  for (const int ranks : {8, 32})
    for (const int window : {512, 4096, 20000}) {
      CAPTURE(ranks);
      CAPTURE(window);
      const PlannedJob job = shared_rows(ranks, "ring", fmt::format(", window: {}", window));
      const RankClasses classes = compile_classes(job), apart = each_by_itself(compile_all(job));
      CHECK(step_seconds(job, classes) == doctest::Approx(step_seconds(job, apart)).epsilon(1e-6));
    }
}

TEST_CASE("the rank that stands for all ranks of a ring that is not balanced is the one that sees the most") {
  for (const std::string last : {"", "\n    - {name: drop, type: dropout, p: 0.1}"})
    for (const std::string attention : {"", ", window: 4096"}) {
      CAPTURE(last);
      CAPTURE(attention);
      const PlannedJob job = shared_rows(8, "ring", attention, last);
      CHECK(step_seconds(job, compile_one_per_stage(job)) ==
            doctest::Approx(step_seconds(job, compile_classes(job))).epsilon(0.02));
    }
}

TEST_CASE("context_method: auto takes a ring where two GPUs with NVLink share sequences of a Llama 8B") {
  // These times were measured with profiles on two H200s, with 4 layers and a sequence of 32,768 tokens: ring 305 ms,
  // ulysses 312 ms.
  const std::string file = std::string(TRAINCTL_SOURCE_DIR) + "/templates/llama_long.yaml";
  const auto method = [&](const std::string& machine) {
    return plan_job(load_job(file, {"vars.layers=4", "vars.heads=32", "vars.kv_heads=8", "vars.d=4096",
                                    "vars.hidden=14336", "vars.length=32768", "launch.ranks=2", "launch.device=cuda",
                                    "launch.machine=" + machine, "parallel.context=2", "parallel.recompute=[]"}))
        .plan.context_method;
  };
  CHECK(method("h200x8") == ContextMethod::ring);
}

TEST_CASE("the advice of a plan that does not fit names context and auto_parallel, with what they cost") {
  const std::string file = std::string(TRAINCTL_SOURCE_DIR) + "/templates/llama_long.yaml";
  const auto with_limit = [&](const std::string& limit) {
    return plan_job(load_job(
        file, {"vars.layers=4", "launch.ranks=4", "parallel.context=2", "dataset.batch=1", "parallel.recompute=[]",
               "launch.device=cuda", "launch.machine=h100x8", "parallel.max_memory=" + limit}));
  };
  const int64_t needed = most_memory(compile_one_per_stage(with_limit("1TiB")));
  const PlannedJob job = with_limit(std::to_string(needed * 8 / 10));
  const auto over = over_memory_limit(job, compile_all(job));
  REQUIRE(over);
  INFO(over->message, over->advice);
  CHECK(over->advice.find("parallel.context: 4 (") != std::string::npos);
  CHECK(over->advice.find("parallel.mode: auto_parallel (") != std::string::npos);
}
