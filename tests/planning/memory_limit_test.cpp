// parallel.max_memory: which plans are refused, which changes the error suggests, and how the head is computed in
// chunks to fit.
#include "engine/planning/memory_limit.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "engine/planning/compile_job.h"
#include "engine/planning/plan_job.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"

using namespace trainctl;

namespace {

PlannedJob planned(const std::string& max_memory, const std::vector<std::string>& overrides = {}) {
  const std::string text = R"(
dataset: {type: random, shape: [64], label_shape: [64], label_dtype: f32, batch: 8}
network:
  - {name: a, type: dense, units: 512, bias: false}
  - {name: b, type: dense, units: 64, bias: false}
loss: mse
optimizer: {type: adam, learning_rate: 0.01}
parallel: {mode: data_parallel, max_memory: )" +
                           max_memory + R"(, optimizer_shard: {level: 0, min_kb: 0}}
launch: {ranks: 4}
)";
  return plan_job(parse_job(text, "job.yaml", overrides));
}

}  // namespace

TEST_CASE("a plan within parallel.max_memory passes") {
  const PlannedJob job = planned("100MB");
  CHECK_FALSE(over_memory_limit(job, compile_all(job)));
}

TEST_CASE("a plan over parallel.max_memory is refused with what it needs and a change that fits") {
  // The 64 * 512 * 2 weights need 256 KiB, their gradients another 256 KiB, and adam's two moments 512 KiB.
  const PlannedJob job = planned("900KiB");
  const auto over = over_memory_limit(job, compile_all(job));
  REQUIRE(over);
  INFO(over->message, over->advice);
  CHECK(over->message.find("optimizer 512.0 KiB") != std::string::npos);
  CHECK(over->message.find(", but parallel.max_memory is 900.0 KiB") != std::string::npos);
  CHECK(over->advice.find("set parallel.optimizer_shard.level: 1 (") != std::string::npos);
}

TEST_CASE("the error of parallel.max_memory is one line, whose advice is its hint") {
  const PlannedJob job = planned("900KiB");
  std::vector<Diagnostic> found;
  try {
    require_memory_limit(job, compile_all(job));
  } catch (const SpecError& error) {
    found = error.diagnostics();
  }
  REQUIRE(found.size() == 1);
  CHECK(found[0].path == "parallel.max_memory");
  CHECK(found[0].message.ends_with(")"));
  CHECK(found[0].hint.starts_with("set parallel.optimizer_shard.level: 1 ("));
  for (const std::string& text : {found[0].message, found[0].hint}) CHECK(text.find('\n') == std::string::npos);
}

TEST_CASE(
    "on GPUs the limit includes the workspace, which the error states, but no memory that a rank can do without") {
  const std::vector<std::string> gpus = {"launch.device=cuda", "parallel.head_pieces=1"};
  const PlannedJob any = planned("0", gpus);
  const Memory memory = compile_all(any)[0].memory;
  CHECK(memory.total() == memory.arena() + memory.workspace);
  CHECK(memory.data_set > 0);
  const PlannedJob fits = planned(std::to_string(memory.total()), gpus);
  CHECK_FALSE(over_memory_limit(fits, compile_all(fits)));
  const PlannedJob job = planned(std::to_string(memory.total() - 1), gpus);
  const auto over = over_memory_limit(job, compile_all(job));
  REQUIRE(over);
  INFO(over->message, over->advice);
  CHECK(over->message.find(", workspace 32.") != std::string::npos);
  CHECK(compile_all(planned("0"))[0].memory.workspace == 0);
}

TEST_CASE("bf16 is advised where the job runs on GPUs and would then fit") {
  const std::vector<std::string> gpus = {"launch.device=cuda", "dataset.batch=4096"};
  const PlannedJob job = planned("37MiB", gpus), on_cpus = planned("4MiB", {gpus[1]});
  const auto over = over_memory_limit(job, compile_all(job));
  REQUIRE(over);
  INFO(over->message, over->advice);
  CHECK(over->advice.find("precision: bf16 (") != std::string::npos);
  CHECK(over_memory_limit(on_cpus, compile_all(on_cpus))->advice.find("bf16") == std::string::npos);
}

TEST_CASE("kernels of bf16 jobs are not calibrated on CPUs, which compute in fp32") {
  CHECK_THROWS_WITH_AS(require_precision(planned("1GiB", {"precision=bf16", "launch.device=cpu"}).spec),
                       "precision is bf16, but CPU ranks compute in fp32; set precision: fp32, or launch.device: cuda",
                       EnvError);
  CHECK_NOTHROW(require_precision(planned("1GiB", {"precision=bf16", "launch.device=cuda"}).spec));
  CHECK_NOTHROW(require_precision(planned("1GiB", {"precision=tf32", "launch.device=cpu"}).spec));
}

TEST_CASE("recompute is advised in as few blocks as suffice, with its memory and its time, beside more micro-batches") {
  const auto deep = [](const std::string& max_memory) {
    return plan_job(parse_job(R"(
dataset: {type: random, shape: [256], label_shape: [256], label_dtype: f32, batch: 4096}
modules:
  block: [{name: norm, type: layer_norm}, {name: up, type: dense, units: 1024}, {name: act, type: gelu},
          {name: down, type: dense, units: 256}, {name: sum, type: add, inputs: [down, input]}]
network: [{module: block, name: h, repeat: 8}]
loss: mse
optimizer: {type: adam}
parallel: {mode: data_parallel, max_memory: )" +
                                  max_memory + R"(}
launch: {ranks: 2, device: cuda, machine: h100x8}
)",
                              "job.yaml"));
  };
  const PlannedJob any = deep("0");
  const int64_t needs = compile_all(any)[0].memory.total();
  const PlannedJob job = deep(std::to_string(needs * 9 / 10));
  const auto over = over_memory_limit(job, compile_all(job));
  REQUIRE(over);
  INFO(over->message, over->advice);
  const size_t recompute = over->advice.find("parallel.recompute: ['h.{0-"),
               micro_batches = over->advice.find("parallel.micro_batches: 2 (");
  REQUIRE(recompute != std::string::npos);
  REQUIRE(micro_batches != std::string::npos);
  CHECK(over->advice.find(" slower)") != std::string::npos);
}

TEST_CASE("under max_memory collectives are repeated in the backward pass if their kept results do not fit") {
  const auto megatron = [](const std::string& max_memory) {
    return plan_job(parse_job(R"(
dataset: {type: random, shape: [16, 64], label_shape: [16, 64], label_dtype: f32, batch: 32}
modules:
  block: [{name: norm, type: layer_norm}, {name: up, type: dense, units: 256}, {name: act, type: gelu},
          {name: down, type: dense, units: 64}, {name: sum, type: add, inputs: [down, input]}]
network: [{module: block, name: h, repeat: 8}]
loss: mse
optimizer: {type: sgd}
parallel:
  mode: semi_auto_parallel
  strategies: {h.*.up: [[1, 1, 1], [2, 1]], h.*.down: [[1, 1, 2], [1, 2]], 'h.*.norm': [[1, 2, 1]]}
  recompute: ['h.*']
  max_memory: )" + max_memory + "\nlaunch: {ranks: 2}\n",
                              "job.yaml"));
  };
  const PlannedJob any = megatron("0");
  REQUIRE_FALSE(any.plan.kept.empty());
  const int64_t needs = compile_all(any)[0].memory.total();
  CHECK_FALSE(megatron(std::to_string(needs)).plan.kept.empty());
  const PlannedJob less = megatron(std::to_string(needs - 1));
  CHECK(less.plan.kept.empty());
  CHECK(compile_all(less)[0].memory.total() < needs);
  const std::vector<std::string>& notes = less.plan.notes;
  CHECK(std::any_of(notes.begin(), notes.end(),
                    [](const std::string& note) { return note.find("recompute repeats all collectives") == 0; }));
}

TEST_CASE("require_machine_memory refuses a job that its machine cannot hold, at launch.machine") {
  const PlannedJob job = planned("0", {"launch.device=cuda", "launch.machine=h100x8", "dataset.batch=200000000"});
  CHECK_THROWS_AS(require_machine_memory(job, compile_all(job)), SpecError);
  const PlannedJob fits = planned("0", {"launch.device=cuda", "launch.machine=h100x8"});
  CHECK_NOTHROW(require_machine_memory(fits, compile_all(fits)));
}

TEST_CASE("where no single change is enough, the advice says so") {
  const PlannedJob job = planned("1KiB");
  const auto over = over_memory_limit(job, compile_all(job));
  REQUIRE(over);
  CHECK(over->advice.find("parallel.strategies") != std::string::npos);
}

namespace {

/// A model whose prediction is much larger than its weights, so that the head is worth computing in chunks.
PlannedJob language_model(const std::string& parallel) {
  return plan_job(parse_job(R"(
dataset: {type: random, shape: [16], dtype: i32, label_shape: [16], classes: 4096, batch: 32}
network:
  - {name: embed, type: embedding, vocab: 4096, units: 16}
  - {name: head, type: dense, units: 4096}
loss: softmax_cross_entropy
parallel: {)" + parallel + "}\n",
                            "job.yaml"));
}

int64_t bytes_of(const PlannedJob& job) { return compile(job, 0).memory.total(); }

}  // namespace

TEST_CASE("a plan over parallel.max_memory computes the head in as few chunks as fit, and a note says so") {
  const PlannedJob whole = language_model("");
  CHECK(whole.plan.head_pieces == 1);
  CHECK(whole.plan.notes.empty());
  // The prediction takes 8 MiB as a whole, 4 MiB in two pieces, and 2 MiB in four. Everything else takes less than 2
  // MiB.
  const int64_t enough = bytes_of(whole), prediction = 32 * 16 * 4096 * 4;
  CHECK(language_model("max_memory: " + std::to_string(enough)).plan.head_pieces == 1);
  CHECK(language_model("max_memory: " + std::to_string(enough - 1)).plan.head_pieces == 2);
  const PlannedJob four = language_model("max_memory: " + std::to_string(enough - prediction * 3 / 4 + 65536));
  CHECK(four.plan.head_pieces == 4);
  CHECK_FALSE(over_memory_limit(four, compile_all(four)));
  REQUIRE(four.plan.notes.size() == 1);
  CHECK(four.plan.notes[0].starts_with(
      "chunked loss: head and the loss run in 4 chunks of up to 128 rows, because parallel.max_memory requires it: "));
  CHECK(language_model("max_memory: 1MB").plan.head_pieces == 1);  // no number of chunks is enough
}

TEST_CASE("parallel.head_pieces sets the number of chunks, and a head that cannot be divided gets a note") {
  const PlannedJob given = language_model("head_pieces: 8");
  CHECK(given.plan.head_pieces == 8);
  CHECK(bytes_of(given) < bytes_of(language_model("head_pieces: 1")));
  REQUIRE(given.plan.notes.size() == 1);
  CHECK(given.plan.notes[0].starts_with(
      "chunked loss: head and the loss run in 8 chunks of up to 64 rows, because parallel.head_pieces is set: "));
  PlannedJob read_elsewhere = plan_job(parse_job(R"(
dataset: {type: random, shape: [16], label_shape: [4], label_dtype: f32, batch: 8}
network: [{name: a, type: dense, units: 4}, {name: b, type: tanh}]
loss: mse
parallel: {head_pieces: 2}
)",
                                                 "job.yaml"));
  CHECK(read_elsewhere.plan.head_pieces == 1);
  REQUIRE(read_elsewhere.plan.notes.size() == 1);
  CHECK(read_elsewhere.plan.notes[0].starts_with(
      "parallel.head_pieces has no effect: b must be the output of a dense or matmul layer"));
}
